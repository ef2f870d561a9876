// What a scheduler does to all rows of a step, over its own columns.
//
// Each function is the twin of one in Python, operation by operation, so that both come to the
// same last digit: no sum is reordered and none is fused. Columns are by slot; entries are those
// of the tree's counters. Nothing is kept here.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <vector>

namespace {

constexpr int kHeldTokens = 64;
constexpr int kAccounts = 4;
constexpr int kKey = 0, kTenant = 1, kMember = 2, kBand = 3;
constexpr int kPlaceBits = 16, kTurnBits = 22, kSortedBits = 14;
constexpr double kGolden = 0.618;
constexpr double kInfinity = std::numeric_limits<double>::infinity();

// As numpy's remainder by 1.0.
double fraction(double value) {
  double rest = std::fmod(value, 1.0);
  if (rest != 0.0) return rest < 0.0 ? rest + 1.0 : rest;
  return 0.0;
}

std::vector<int64_t> sorted_by(const std::vector<int64_t>& keys) {
  std::vector<int64_t> order(keys.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int64_t a, int64_t b) { return keys[a] < keys[b]; });
  return order;
}

struct Row {
  int64_t place, tenant, key, turn;
  double cost;
  bool must, promised;
};

// The twin of `scheduler.running.rotation._in_turn`.
std::vector<int64_t> in_turn(const std::vector<Row>& rows) {
  const size_t n = rows.size();
  int64_t newest = rows[0].turn;
  for (const Row& row : rows) newest = std::max(newest, row.turn);
  std::vector<int64_t> turns(n), keys(n);
  for (size_t i = 0; i < n; ++i) {
    turns[i] = std::max<int64_t>(rows[i].turn - newest + (int64_t{1} << kTurnBits) - 1, 0);
    keys[i] = (((rows[i].key << 1) + !rows[i].must) << kTurnBits) + turns[i];
  }
  const std::vector<int64_t> by_key = sorted_by(keys);
  for (size_t start = 0, end; start < n; start = end) {
    int64_t latest = 0;
    for (end = start; end < n && rows[by_key[end]].key == rows[by_key[start]].key; ++end)
      latest = std::max(latest, turns[by_key[end]]);
    for (size_t i = start; i < end; ++i) {
      const Row& row = rows[by_key[i]];
      const int64_t late = (row.tenant << 1) + !row.must;
      const int64_t place = static_cast<int64_t>(i - start);
      keys[i] = (((late << kSortedBits) + place) << kTurnBits) + latest;
    }
  }
  std::vector<int64_t> order = sorted_by(keys);
  for (int64_t& index : order) index = by_key[index];
  return order;
}

}  // namespace

extern "C" {

struct SluicePick {
  // Columns by slot.
  const int64_t* accounts;
  const int32_t* num_tokens;
  int64_t* turns;
  const double* due_s;
  // By entry.
  const double* part_of;
  int64_t num_parts;
  double* credit_s;
  int64_t num_credits;
  // Of the step.
  double row_s, context_s, must_before_s;
  int64_t num_steps, max_steps_out;
  // Who had credit, and now has.
  int64_t* held;
  int64_t num_held;
  // Written: the rows that run, and whether one that is promised something does not.
  int64_t* chosen;
  int64_t some_promised_out;
};

// Choose the rows that run of `n` slots. The twin of `DecodeShares._pick`.
// Returns how many; -1 where nobody is held, -2 where an entry has no place for its credit.
int64_t sluice_pick(SluicePick* step, const int64_t* slots, int64_t n) {
  std::vector<Row> rows;
  rows.reserve(n);
  std::vector<double> parts;
  for (int64_t i = 0; i < n; ++i) {
    const int64_t slot = slots[i];
    const int64_t* account = step->accounts + slot * kAccounts;
    const int64_t tenant = account[kMember];
    const double part = step->part_of[std::min(tenant, step->num_parts - 1)];
    if (!(part < kInfinity)) continue;
    if (tenant >= step->num_credits) return -2;
    const double context_s = step->context_s * step->num_tokens[slot];
    const double cost = std::max(step->row_s + context_s, 1e-9);
    const int64_t turn = step->turns[slot];
    const double due_s = step->due_s[slot];
    const bool is_late = (turn >> kPlaceBits) < step->num_steps - step->max_steps_out;
    rows.push_back({i, tenant, account[kKey], turn, cost, is_late || due_s < step->must_before_s,
                    due_s < kInfinity});
    parts.push_back(part);
  }
  if (rows.empty()) return -1;

  const std::vector<int64_t> order = in_turn(rows);
  std::vector<char> runs(rows.size(), 0);
  std::vector<int64_t> picked;
  std::vector<int64_t> held;
  std::vector<double> credits;
  double sum = 0.0;
  for (size_t start = 0, end; start < order.size(); start = end) {
    const Row& first = rows[order[start]];
    double credit = step->credit_s[first.tenant];
    if (std::isnan(credit))
      credit = (fraction(-(static_cast<double>(first.tenant) * kGolden)) - 1.0) * first.cost;
    const double due = credit + parts[order[start]];
    double spent = 0.0, all = 0.0, before_first = 0.0;
    for (end = start; end < order.size() && rows[order[end]].tenant == first.tenant; ++end) {
      const Row& row = rows[order[end]];
      sum += row.cost;
      double before = sum - row.cost;
      if (end == start) before_first = before;
      before -= before_first;
      all += row.cost;
      if (row.must || before < due) {
        spent += row.cost;
        runs[order[end]] = 1;
        picked.push_back(order[end]);
      }
    }
    held.push_back(first.tenant);
    credits.push_back(std::min(std::max(due - spent, -all), first.cost));
  }
  for (int64_t i = 0; i < step->num_held; ++i)
    step->credit_s[step->held[i]] = std::numeric_limits<double>::quiet_NaN();
  for (size_t i = 0; i < held.size(); ++i) {
    step->held[i] = held[i];
    step->credit_s[held[i]] = credits[i];
  }
  step->num_held = static_cast<int64_t>(held.size());

  if (picked.empty() && static_cast<int64_t>(rows.size()) == n) {
    const auto least = std::min_element(
        rows.begin(), rows.end(), [](const Row& a, const Row& b) { return a.turn < b.turn; });
    picked.push_back(least - rows.begin());
    runs[picked[0]] = 1;
  }
  step->some_promised_out = 0;
  int64_t num_chosen = 0;
  size_t next = 0;
  for (int64_t i = 0; i < n; ++i) {
    if (next < rows.size() && rows[next].place == i) {
      const size_t index = next++;
      if (!runs[index]) {
        step->some_promised_out |= rows[index].promised;
        continue;
      }
    }
    step->turns[slots[i]] = step->num_steps << kPlaceBits;
    step->chosen[num_chosen++] = slots[i];
  }
  for (size_t i = 0; i < picked.size(); ++i)
    step->turns[slots[rows[picked[i]].place]] += static_cast<int64_t>(i);
  return num_chosen;
}

struct SluiceRows {
  // Columns by slot.
  int64_t num_slots;
  const int32_t* epochs;
  const int64_t* accounts;
  const int32_t* num_tokens;
  int32_t* num_known;
  const int32_t *limit, *num_prompt, *num_cached;
  int64_t* num_held;
  int32_t* held;
  const uint8_t* ends_as_model;
  double *own, *growth;
  const double* is_held;
  double *due_s, *paced_s;
  const double *tpot_s, *gap_s;
  // By token id.
  const uint8_t* is_end;
  // By entry.
  double *values, *served;
  const double* weights;
  int64_t has_organisations;
  // Of the step.
  double now, row, context_token, held_token;
  int64_t has_promises;
  // Written, [slots]: whose tenants were charged and what; [rows]: of those that go on and of the
  // ended; the bands that were charged, and what.
  int64_t* tenants;
  double* costs;
  int64_t* going;
  int32_t *tokens, *cached, *drawn;
  int64_t* ended;
  int64_t* bands;
  double* band_costs;
  int64_t num_tenants, num_going, num_bands;
};

static void charge(SluiceRows* step, const int64_t* account, double cost) {
  for (int level : {kKey, kTenant}) {
    const int64_t entry = account[level];
    step->served[entry] += cost;
    step->values[entry] += cost / step->weights[entry];
  }
  step->tenants[step->num_tenants++] = account[kTenant];
  int64_t at = 0;
  while (at < step->num_bands && step->bands[at] != account[kBand]) ++at;
  if (at == step->num_bands) {
    step->bands[step->num_bands++] = account[kBand];
    step->band_costs[at] = 0.0;
  }
  step->band_costs[at] += cost;
}

static void charge_organisation(SluiceRows* step, const int64_t* account, double cost) {
  const int64_t entry = account[kMember];
  if (entry == account[kTenant]) return;
  step->served[entry] += cost;
  step->values[entry] += cost / step->weights[entry];
}

// Take a token for each of `n` rows, of which the first `num_decodes` were decoding already. The
// twin of `Results._take_rows` and what it calls.
// Returns how many have ended; -1, and changes nothing, where a row is not the one it was planned
// as or has no room for a token.
int64_t sluice_take_rows(SluiceRows* step, const int64_t* slots, const int32_t* epochs,
                         const int32_t* token_ids, int64_t n, int64_t num_decodes) {
  for (int64_t i = 0; i < n; ++i) {
    const int64_t slot = slots[i];
    if (step->epochs[slot] != epochs[i] || step->num_held[slot] == kHeldTokens) return -1;
  }
  for (int64_t i = 0; i < num_decodes; ++i) {
    const int64_t slot = slots[i];
    if (step->has_promises) {
      step->paced_s[slot] += step->tpot_s[slot];
      step->due_s[slot] = std::min(step->paced_s[slot], step->gap_s[slot] + step->now);
    }
    step->own[slot] += step->is_held[slot];
    step->growth[slot] -= step->is_held[slot];
  }

  step->num_tenants = step->num_going = step->num_bands = 0;
  if (step->held_token != 0.0) {
    for (int64_t slot = 0; slot < step->num_slots; ++slot)
      step->costs[slot] = step->own[slot] * step->held_token;
    for (int64_t i = 0; i < n; ++i) {
      double cost = step->row;
      if (step->context_token != 0.0) cost += step->context_token * step->num_tokens[slots[i]];
      step->costs[slots[i]] += cost;
    }
    for (int64_t slot = 0; slot < step->num_slots; ++slot)
      if (step->costs[slot] != 0.0)
        charge(step, step->accounts + slot * kAccounts, step->costs[slot]);
    if (step->has_organisations)
      for (int64_t slot = 0; slot < step->num_slots; ++slot)
        if (step->costs[slot] != 0.0)
          charge_organisation(step, step->accounts + slot * kAccounts, step->costs[slot]);
  } else {
    for (int64_t i = 0; i < n; ++i) {
      double cost = step->row;
      if (step->context_token != 0.0) cost += step->context_token * step->num_tokens[slots[i]];
      step->costs[i] = cost;
      charge(step, step->accounts + slots[i] * kAccounts, cost);
    }
    if (step->has_organisations)
      for (int64_t i = 0; i < n; ++i)
        charge_organisation(step, step->accounts + slots[i] * kAccounts, step->costs[i]);
  }

  int64_t num_ended = 0;
  for (int64_t i = 0; i < n; ++i) {
    const int64_t slot = slots[i];
    const int32_t token_id = token_ids[i];
    step->held[slot * kHeldTokens + step->num_held[slot]++] = token_id;
    const int32_t num_known = ++step->num_known[slot];
    if (num_known >= step->limit[slot] || (step->is_end[token_id] && step->ends_as_model[slot])) {
      step->ended[num_ended++] = i;
      continue;
    }
    const int64_t at = step->num_going++;
    step->going[at] = slot;
    step->tokens[at] = token_id;
    step->cached[at] = step->num_cached[slot];
    step->drawn[at] = num_known - step->num_prompt[slot];
  }
  return num_ended;
}

}  // extern "C"
