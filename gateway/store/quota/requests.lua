-- What a request holds, from its reservation to its bill: checked in all of its limits and counted
-- in all or none, in one atomic step.
--
-- A reservation is r:<id>: its scopes, what it holds and what was last told of its use. Its lease is
-- its score in `leases`. One that runs out is reaped: what was told is charged, the rest is let go,
-- and the bill is left in `orphans` for whoever sweeps. One that has a hard limit waits for that in
-- `overdue`, holding what it holds: its gateway may have billed it, or vouched for it, in the ledger,
-- and whoever sweeps looks there first. One that was settled leaves a tombstone in its place, so that
-- a delayed repetition cannot hold anything again; x:<id> remembers what a reaped one was charged, so
-- that a late settle corrects it. n:<id> is a tombstone's of one that was not known: its bill, which
-- says whose it was, may come behind it.
--
-- Who is cut off vouches in the ledger for what it holds. A window that is loaded meanwhile has that
-- among what was used: v:<scope>:<f> has it apart, as <id> = <amount>, and who comes back, to
-- hold it again or to settle it, puts right what is used.

local LEASES, OVERDUE = P .. 'leases', P .. 'overdue'
local ORPHANS, ENDED = P .. 'orphans', P .. 'ended'
local TOMBSTONE_MS, TOMBSTONE = 120000, ''
-- A gateway that was not heard of for so long has vouched for what it holds.
local FORGOTTEN_US = 20000000

local ops = {}

-- Hold amounts in a scope that was read whole.
local function hold(scope, values, amounts)
  local entries = scope.entries
  for i = 1, #entries do
    local entry = entries[i]
    local amount, at = amounts[entry.amount], entry.at
    if entry.kind == WINDOW then
      values[entry.held] = values[entry.held] + amount
    elseif entry.kind == COUNT then
      values[at] = values[at] + amount
    elseif amount ~= 0 then
      values[at], values[entry.since] = level(entry, values) + amount, now
    end
  end
  write(scope, values)
end

-- Let go of what a window holds and count what was used; returns what it has used in all if that is
-- so many percent of its limit, below which who watches thresholds has none. A slot that is gone is
-- left alone; what settles in a window that was not counted here waits for the ledger to be loaded.
local function release_window(id, key, entry, values, was, is, percent)
  local held, used = entry.held, entry.used
  if not held then return nil end
  values[held] = max(values[held] - was, 0)
  if not entry.at then
    if is ~= 0 then
      local waiting = P .. 'w:' .. key .. ':' .. entry.name
      call('HINCRBY', waiting, id .. ':' .. entry.start, string.format('%.0f', is))
      call('PEXPIRE', waiting, REAPED_MS)
    end
    return nil
  end
  local total = values[used] + is
  values[used] = total
  if #entry.all_used > 1 then total = sums(entry, values) end
  return total * 100 >= entry.limit * percent and total or nil
end

-- Let go of what is held and count what was used, in every scope. Returns how far windows are used:
-- {scope, entry, used, ...}, of those that are used to a percentage or more.
local function release(id, scopes, held, used, percent)
  local windows, num = {}, 0
  for s = 1, #scopes do
    local scope = scopes[s]
    local values, entries = read(scope), scope.entries
    for i = 1, #entries do
      local entry = entries[i]
      local kind, at = entry.kind, entry.at
      local was, is = held[entry.amount], used[entry.amount]
      if kind == WINDOW then
        local total = release_window(id, scope.key, entry, values, was, is, percent)
        if total and not entry.is_late then
          windows[num + 1], windows[num + 2], windows[num + 3] = s, i, total
          num = num + 3
        end
      elseif at and kind == COUNT then
        values[at] = max(values[at] - was, 0)
      elseif at then
        values[at] = values[at] - was + is
      end
    end
    write(scope, values)
  end
  return windows
end

-- A record is {scopes as they came, amounts, at, meta, told, rated}: what was last told is {input,
-- cached, output, nano}, and as how much input it counts for rates. Once it was extended it has of
-- each of its choices what that had been granted before it was last extended, and what it got then.
local PACKED, AMOUNTS, AT, META, TOLD, RATED, EXTENDED = 1, 2, 3, 4, 5, 6, 7
local NOTHING_TOLD = {0, 0, 0, 0}

local function remember(id, record)
  call('SET', P .. 'r:' .. id, cmsgpack.pack(record))
end

local function renew(id, lease_us)
  call('ZADD', LEASES, now + lease_us, id)
end

-- Note what was used so far; it stands in a list from `at` on.
local function tell(record, list, at)
  record[TOLD] = {list[at], list[at + 1], list[at + 2], list[at + 3]}
  record[RATED] = list[at + 4]
end

-- A record that is held, or nil; and whether it was settled.
local function recall(id)
  local stored = call('GET', P .. 'r:' .. id)
  if not stored or stored == TOMBSTONE then return nil, stored == TOMBSTONE end
  return cmsgpack.unpack(stored), false
end

local function bury(id)
  call('SET', P .. 'r:' .. id, TOMBSTONE, 'PX', TOMBSTONE_MS)
end

-- Note what ended: a window that is loaded soon asks the ledger for it.
local function note_end(id, record, used)
  if record[META] ~= '' then
    call('RPUSH', ENDED, cmsgpack.pack({id, record[AT], record[META], used[TOKENS], used[NANO]}))
  end
end

-- End a reservation whose process no longer renews it, at what was last told of it; or at what the
-- ledger has, where it is billed already.
local function reap(id, record, billed)
  local use, held = record[TOLD], record[AMOUNTS]
  -- Who told nothing, or is of an earlier release, told of no rate.
  local rated = record[RATED] or use[1] - use[2]
  -- The request itself happened: its rate stays charged.
  local used = {held[REQUESTS], rated, use[3], 0, 0, use[1] + use[3], use[4]}
  if billed then
    used = billed
    used[REQUESTS] = held[REQUESTS]
  end
  release(id, scopes_of(record[PACKED]), held, used, HUGE)
  note_end(id, record, used)
  call('DEL', P .. 'r:' .. id)
  call('SET', P .. 'x:' .. id, cmsgpack.pack({record[PACKED], used}), 'PX', REAPED_MS)
  if use[1] > 0 and not billed then call('HSET', ORPHANS, id, cmsgpack.pack({record[AT], record[META], use})) end
end

local function is_hard(record)
  for _, scope in ipairs(scopes_of(record[PACKED])) do
    if scope.has_hard then return true end
  end
  return false
end

local function reap_expired(limit)
  local expired = call('ZRANGEBYSCORE', LEASES, '-inf', now, 'LIMIT', 0, limit)
  local num = 0
  for i = 1, #expired do
    local id = expired[i]
    local record = recall(id)
    call('ZREM', LEASES, id)
    if record and is_hard(record) then
      call('ZADD', OVERDUE, now, id)
    elseif record then
      reap(id, record)
      num = num + 1
    end
  end
  return num
end

-- A record that is overdue still, or nil: it may have been renewed, or settled, since it was listed.
local function recall_overdue(id)
  local record = recall(id)
  if record and not call('ZSCORE', LEASES, id) and call('ZSCORE', OVERDUE, id) then return record end
  call('ZREM', OVERDUE, id)
  return nil
end

-- Weigh an amount of a rate: what is used then and what is left, in fractions; or nil, then the
-- wait, what is left and what is used.
local function weigh_rate(entry, values, amount)
  local limit, used = entry.limit, level(entry, values)
  local after = used + amount
  if after <= limit then return after, limit - after end
  if amount > limit then return nil, -1, 0, 0 end
  -- Fractions of a microsecond are the arithmetic's, not the caller's.
  local over_us = (after - limit) * entry.each_us
  if over_us <= 0.5 then return after, 0 end
  local left = floor(limit - used + 1e-6)
  return nil, ceil(over_us), left, limit - left
end

-- Weigh one more of a count; as above.
local function weigh_count(entry, value, amount)
  local limit, after = entry.limit, value + amount
  if after <= limit then return after, limit - after end
  return nil, amount > limit and -1 or 0, limit - value, value
end

-- Weigh an amount of a window: what it holds then in its newest slot, or nil; then as above.
local function weigh_window(entry, values, amount)
  local limit, holds = entry.limit, values[entry.held]
  local used, held = values[entry.used], holds
  if entry.oldest ~= entry.start then used, held = sums(entry, values) end
  local left = limit - used - held
  if amount > left and entry.is_hard then
    -- What others only hold may come back; what is used may not.
    return nil, used + amount <= limit and 0 or -2, max(left, 0), used
  end
  return holds + amount, left - amount
end

-- How the tightest of some limits stands: {scope, entry, left, whole in us}, or false.
local function stand(scopes, s, i, left, after)
  if not s then return false end
  local entry = scopes[s].entries[i]
  local whole_us = entry.kind == RATE and ceil(after * entry.each_us) or (entry.stop - now_s) * 1000000
  return {s, i, max(floor(left + 1e-6), 0), whole_us}
end

-- Why the windows of a scope cannot be weighed now, if they cannot.
local function excuse(scope)
  if now_s < scope.start or now_s >= scope.stop then return {'stale'} end
  if now < built_us then
    -- What refuses nothing is not loaded before everybody is back.
    return scope.has_hard and {'building', built_us - now} or nil
  end
  return nil
end

-- The numbers of the scopes that have a window which was not counted here, or not as it is now.
local function unknown_of(scopes)
  local unknown = {}
  for s = 1, #scopes do
    local scope = scopes[s]
    local values = read(scope)
    local is_unknown = scope.unknown
    for _, entry in ipairs(scope.entries) do
      is_unknown = is_unknown or entry.kind == WINDOW and values[entry.loaded] < entry.changed
    end
    if is_unknown then unknown[#unknown + 1] = s end
  end
  return unknown
end

-- Whether a refusal goes before another. A refusal comes with its wait: what never fits is said
-- first, then what this window has no more of, then the longest wait.
local function is_worse(wait, than)
  return (than >= 0 and (wait < 0 or wait > than)) or (than == -2 and wait == -1)
end

local YOUNG_US, NEWS_US = 15000000, 500000
local OWNER_AT = {organisation = 1, tenant = 2, key = 3}
local NOBODY = '00000000-0000-0000-0000-000000000000'

-- The scopes of whoever is billed for a request.
local function owners_of(meta)
  if meta == '' then return {} end
  local ids, keys = cjson.decode(meta), {P .. 'platform:' .. NOBODY}
  for kind, at in pairs(OWNER_AT) do
    if ids[at] then keys[#keys + 1] = P .. kind .. ':' .. ids[at] end
  end
  return keys
end

-- A scope's kind and its id.
local parts_of = kept(function(key)
  local kind, id = string.match(key, '^' .. P .. '(%a+):(.*)$')
  return {kind, id}
end)

-- Tell whether a request is a scope's, by who is billed for it.
local function is_of(meta, key)
  local kind, id = unpack(parts_of(key))
  if meta == '' or kind == 'platform' then return meta ~= '' end
  return string.find(meta, id, 1, true) and cjson.decode(meta)[OWNER_AT[kind]] == id or false
end

-- Windows that were loaded lately, {scope's key, entry, until when}, in a queue and by their scopes: a
-- gateway that has not heard of their limit may still begin requests without it. There may be
-- thousands, and every reservation asks. In another life nothing is loaded yet.
local young, young_from, young_to, young_of, young_in = {}, 1, 0, {}, nil

local function forget_old()
  if young_in ~= living then young, young_from, young_to, young_of, young_in = {}, 1, 0, {}, living end
  while young_from <= young_to and now >= young[young_from][3] do
    local key = young[young_from][1]
    table.remove(young_of[key], 1)
    if #young_of[key] == 0 then young_of[key] = nil end
    young[young_from], young_from = nil, young_from + 1
  end
end

local function note_young(key, from)
  forget_old()
  local one = {key, from, now + YOUNG_US}
  young_to = young_to + 1
  young[young_to], young_of[key] = one, young_of[key] or {}
  table.insert(young_of[key], one)
end

-- The slot of a window that an instant is in, of those that start at `starts`; nil: none of them.
local function slot_of(from, at_us)
  local at_s = at_us / 1000000 + BASE_S
  local oldest, stop, width = from[8], from[7], from[9]
  if at_s < oldest or at_s >= stop then return nil end
  return oldest + floor((at_s - oldest) / width) * width
end

-- A window as a request counts in it that began in this slot.
local function entry_in(from, slot)
  local entry = {}
  for i = 1, #from do entry[i] = from[i] end
  entry[6], entry[7], entry[8] = slot, slot + from[9], from[8] - from[6] + slot
  return entry
end

-- Put a running request into a window whose limit was set, or changed, after it had begun; not into
-- one whose limit it began without because that was gone.
local function put_into(id, record, key, from)
  local slot = slot_of(from, record[AT])
  if not slot then return end
  local entry, scopes, found = entry_in(from, slot), cmsgpack.unpack(record[PACKED]), nil
  for i = 1, #scopes do
    local sent = cmsgpack.unpack(scopes[i])
    if sent[1] == key then found = {i, sent[2], sent[3] or 0} end
  end
  local entries, heard = found and found[2] or {}, found and found[3] or 0
  if heard > from[10] then return end
  for i = 1, #entries do
    local old = entries[i]
    if old[4] == entry[4] and old[6] == slot then
      if old[10] >= entry[10] then return end
      entry[11], entries[i] = old[11], entry
      scopes[found[1]] = cmsgpack.pack({key, entries, heard})
      record[PACKED] = cmsgpack.pack(scopes)
      return remember(id, record)
    end
  end
  entry[11] = true
  entries[#entries + 1] = entry
  scopes[found and found[1] or #scopes + 1] = cmsgpack.pack({key, entries, heard})
  record[PACKED] = cmsgpack.pack(scopes)
  remember(id, record)
  local scope = scope_with(key, {entry})
  hold(scope, read_whole(scope), record[AMOUNTS])
end

-- Tell whether a request counts in a window as it is now.
local function counts_in(scopes, key, from)
  for s = 1, #scopes do
    if scopes[s].key == key then
      for _, entry in ipairs(scopes[s].entries) do
        if entry.name == from[4] and entry.changed >= from[10] then return true end
      end
    end
  end
  return false
end

-- Tell whether a window's limit is gone for a request that does not count in it: its gateway has heard
-- of a later change. If it is set again, the window is loaded anew, with what ran without it.
local function is_gone(scopes, key, from)
  return (scopes.heard[key] or 0) > from[10]
end

-- The young windows that a request is to count in and does not.
local function news_for(record)
  forget_old()
  if young_from > young_to then return {} end
  local news, scopes = {}, scopes_of(record[PACKED])
  for _, key in ipairs(owners_of(record[META])) do
    for _, one in ipairs(young_of[key] or {}) do
      local is_news = not is_gone(scopes, key, one[2]) and not counts_in(scopes, key, one[2])
      if is_news then news[#news + 1] = one end
    end
  end
  return news
end

local function has_room(news, amounts)
  for i = 1, #news do
    local scope = scope_with(news[i][1], {news[i][2]})
    local values, entry = read_whole(scope), scope.entries[1]
    if entry.is_hard and amounts[entry.amount] > room(entry, values) then return false end
  end
  return true
end

local function catch_up(id, record, news)
  for i = 1, #news do put_into(id, record, news[i][1], news[i][2]) end
end

-- Take from what a window has used what it was loaded with of a request that its process had vouched
-- for; returns the hash that has it, if there was something.
local function take_vouched(id, key, entry, values)
  local apart = P .. 'v:' .. key .. ':' .. entry.name
  local amount = entry.at and call('HGET', apart, id)
  if not amount then return false end
  -- It counts in the slot that it began in, by the ledger and by its limits.
  values[entry.used] = max(values[entry.used] - tonumber(amount), 0)
  return apart
end

-- Count what a request used that settles here unheard of, where its windows were loaded with what it
-- was vouched for.
local function settle_vouched(id, packed, used)
  for _, scope in ipairs(scopes_of(packed)) do
    local values, has_changed = read(scope), false
    for _, entry in ipairs(scope.entries) do
      local apart = entry.kind == WINDOW and entry.used and take_vouched(id, scope.key, entry, values)
      if apart then
        call('HDEL', apart, id)
        values[entry.used], has_changed = values[entry.used] + used[entry.amount], true
      end
    end
    if has_changed then write(scope, values) end
  end
end

-- The last change of each scope's limits that a reservation of this life has told of: a window that was
-- not loaded since is not counted in, as its limit is gone, or asks to be loaded.
local newest, MAX_NEWEST = {of = {}, num = 0, life = nil}, 20000

local function note_heard(heard)
  -- What is forgotten is told again by the scope's next request.
  local is_full = newest.num >= MAX_NEWEST
  if is_full or newest.life ~= living then newest = {of = {}, num = 0, life = living} end
  for key, changed in pairs(heard) do
    local before = newest.of[key]
    if not before then newest.num = newest.num + 1 end
    if not before or before < changed then newest.of[key] = changed end
  end
end

local function newest_of(key)
  return newest.life == living and newest.of[key] or 0
end

-- Have what is counted of whom a request is billed to loaded again, once it is asked for: of what the
-- counters do not know the bill may have come into the ledger since. Loading adds and takes nothing
-- that is right already.
local function recount(meta)
  for _, key in ipairs(owners_of(meta)) do
    local fields, has_changed = read_named(key), false
    for name, loaded in pairs(fields) do
      if loaded >= 0 and string.find(name, ':g$') then fields[name], has_changed = -1, true end
    end
    if has_changed then write_named(key, fields) end
  end
end

-- {'recount', {meta, ...}}: the ledger has got bills of these lately, which windows may lack.
function ops.recount(op)
  for _, meta in ipairs(op[2]) do recount(meta) end
  return {'done'}
end

-- {'reserve', id, scopes, amounts, meta, lease_us} ->
--   {'held', at_us, {tightest on requests, tightest on tokens}}, each {scope, entry, left,
--   whole in us} or false
--   {'denied', scope, entry, wait, left, used}: wait in us, or -1: never, or -2: not in this window;
--   0 is for someone else to end
--   {'stale'} | {'building', wait_us} | {'settled'}
--   {'unknown', {scope, ...}}: load those and ask again
-- `scopes` is the number of the argument that has them, packed.
function ops.reserve(op)
  local id, packed, amounts = op[2], argv[op[3]], op[4]
  local known, is_settled = recall(id)
  if known then return {'held', known[AT], {}} end
  if is_settled then return {'settled'} end
  local scopes, all, worst = scopes_of(packed), {}, nil
  note_heard(scopes.heard)
  -- The tightest limits, on requests and on tokens: where, what is left, what was written.
  local rs, ri, r_left, r_after = nil, nil, HUGE, nil
  local ts, ti, t_left, t_after = nil, nil, HUGE, nil
  for s = 1, #scopes do
    local entries, values = scopes[s].entries, read_whole(scopes[s])
    local reason = excuse(scopes[s])
    if reason then return reason end
    if now >= built_us and scopes[s].unknown then return {'unknown', unknown_of(scopes)} end
    for i = 1, #entries do
      local entry = entries[i]
      local kind, index, at = entry.kind, entry.amount, entry.at
      local after, left, room_left, used
      if kind == RATE then
        after, left, room_left, used = weigh_rate(entry, values, amounts[index])
        values[entry.since] = now
      elseif kind == WINDOW then
        if now >= built_us and values[entry.loaded] < entry.changed then
          return {'unknown', unknown_of(scopes)}
        end
        after, left, room_left, used = weigh_window(entry, values, amounts[index])
        at = entry.held
      else
        after, left, room_left, used = weigh_count(entry, values[at], amounts[index])
      end
      if not after then
        local wait = left
        if not worst or is_worse(wait, worst[4]) then
          worst = {'denied', s, i, wait, room_left, used}
        end
      else
        values[at] = after
        if index == REQUESTS then
          if left < r_left then rs, ri, r_left, r_after = s, i, left, after end
        elseif (index <= OUTPUT or index == TOKENS) and left < t_left then
          ts, ti, t_left, t_after = s, i, left, after
        end
      end
    end
    all[s] = values
  end
  if worst then return worst end
  local record = {packed, amounts, now, op[5], NOTHING_TOLD}
  local news = news_for(record)
  if not has_room(news, amounts) then return {'building', NEWS_US} end
  for s = 1, #scopes do write(scopes[s], all[s]) end
  remember(id, record)
  renew(id, op[6])
  catch_up(id, record, news)
  local tightest = {stand(scopes, rs, ri, r_left, r_after), stand(scopes, ts, ti, t_left, t_after)}
  return {'held', now, tightest}
end

-- {'extend', id, tokens, nano, lease_us, {input, cached, output, nano, rate}} ->
--   {'held', tokens}, as many of them as fit, or {'gone'}
--   {'building', wait_us} | {'unknown'}: load what it counts in and ask again
--- A call whose answer did not come in time is made again: with no more `granted` to its choice than
--- before that was extended, the first has been done, and is answered once more.
function ops.extend(op)
  local id, tokens, nano, choice, granted = op[2], op[3], op[4], op[7], op[8]
  local record = recall(id)
  if not record then return {'gone'} end
  renew(id, op[5])
  tell(record, op[6], 1)
  remember(id, record)
  local extended = record[EXTENDED] or {}
  local last = choice and extended[choice + 1]
  if last and granted <= last[1] then return {'held', last[2]} end
  local scopes, all, fits = scopes_of(record[PACKED]), {}, tokens
  local cost = {[OUTPUT] = 1, [TOKENS] = 1, [NANO] = nano / tokens}
  for s = 1, #scopes do
    local scope = scopes[s]
    all[s] = read_whole(scope)
    for i = 1, #scope.entries do
      local entry = scope.entries[i]
      local each = cost[entry.amount]
      if each and each > 0 and (entry.kind == RATE or entry.is_hard) then
        if entry.kind == WINDOW then
          if now < built_us then return {'building', built_us - now} end
          if not entry.at or (all[s][entry.loaded] or 0) < 0 then return {'unknown'} end
        end
        fits = math.min(fits, floor(room(entry, all[s]) / each))
      end
    end
  end
  if fits < 1 then return {'held', 0} end
  local more = {0, 0, fits, 0, 0, fits, ceil(fits * nano / tokens)}
  for s = 1, #scopes do hold(scopes[s], all[s], more) end
  for i = 1, #more do record[AMOUNTS][i] = record[AMOUNTS][i] + more[i] end
  if choice then
    extended[choice + 1] = {granted, fits}
    record[EXTENDED] = extended
  end
  remember(id, record)
  return {'held', fits}
end

-- {'settle', id, amounts, percent, at_us, meta, scopes} -> {'done', {scope, entry, used, ...}} |
--   {'nothing'} | {'known'}: it was done before
-- The last three are those of a request that is not known here, as it began in a life before; who
-- has only its row has no `scopes`.
function ops.settle(op)
  local id, used, percent = op[2], op[3], op[4]
  local record, was_settled = recall(id)
  if record then
    local windows = release(id, scopes_of(record[PACKED]), record[AMOUNTS], used, percent)
    call('ZREM', LEASES, id)
    note_end(id, record, used)
    bury(id)
    return {'done', windows}
  end
  local reaped = call('GET', P .. 'x:' .. id)
  if reaped then
    local charged = cmsgpack.unpack(reaped)
    local nothing = {0, 0, 0, 0, 0, 0, 0}
    local more = {}
    for i = 1, #used do more[i] = used[i] - charged[2][i] end
    call('DEL', P .. 'x:' .. id)
    bury(id)
    return {'done', release(id, scopes_of(charged[1]), nothing, more, percent)}
  end
  -- It was settled here: whoever asks again did not hear so.
  if was_settled and call('EXISTS', P .. 'n:' .. id) == 0 then return {'known'} end
  if op[6] then
    note_end(id, {[AT] = op[5], [META] = op[6]}, used)
    recount(op[6])
  end
  if op[7] then
    settle_vouched(id, argv[op[7]], used)
    call('DEL', P .. 'n:' .. id)
  else
    -- Its own process has more to say, if that lives.
    call('SET', P .. 'n:' .. id, 1, 'PX', TOMBSTONE_MS)
  end
  -- A reservation that was given up may still be on its way.
  bury(id)
  return {'nothing'}
end

-- {'begun', id}: its prompt waits no longer.
function ops.begun(op)
  local record = recall(op[2])
  local waits = record and record[AMOUNTS][QUEUED] or 0
  if waits == 0 then return {'nothing'} end
  for _, scope in ipairs(scopes_of(record[PACKED])) do
    for i = 1, #scope.entries do
      local entry = scope.entries[i]
      if entry.amount == QUEUED then
        local values = read(scope)
        if entry.at then
          values[entry.at] = max(values[entry.at] - waits, 0)
          write(scope, values)
        end
      end
    end
  end
  record[AMOUNTS][QUEUED] = 0
  remember(op[2], record)
  return {'done'}
end

-- {'keep', gateway, lease_us, {{id, input, cached, output, nano, rate}, ...}, epoch} ->
--   {'kept', gateways alive, {id, reaped?, ...} that hold nothing any more}
-- Who names another epoch has not come back to this one, and is not counted.
function ops.keep(op)
  local gone = {}
  for i = 1, #op[4] do
    local told = op[4][i]
    local id = told[1]
    local record, is_settled = recall(id)
    if record then
      renew(id, op[3])
      tell(record, told, 2)
      remember(id, record)
    elseif not is_settled then
      gone[#gone + 1] = id
      gone[#gone + 1] = call('EXISTS', P .. 'x:' .. id)
    end
  end
  local gateways = P .. 'gateways'
  if not op[5] or op[5] == living then call('ZADD', gateways, now, op[2]) end
  call('ZREMRANGEBYSCORE', gateways, '-inf', now - FORGOTTEN_US)
  return {'kept', call('ZCARD', gateways), gone}
end

-- {'assert', id, scopes, amounts, at_us, meta, lease_us}: hold again what was granted before ->
--   {'done'} | {'known'} | {'gone'}: others have got it, as a hard window was loaded without it
function ops.assert(op)
  local id, amounts = op[2], op[4]
  local known, is_settled = recall(id)
  if known or is_settled then return {'known'} end
  local scopes, all, taken = scopes_of(argv[op[3]]), {}, {}
  for s = 1, #scopes do
    local scope = scopes[s]
    local values = read_whole(scope)
    for _, entry in ipairs(scope.entries) do
      if entry.kind == WINDOW then
        taken[#taken + 1] = take_vouched(id, scope.key, entry, values) or nil
        local is_short = entry.is_hard and entry.at and amounts[entry.amount] > room(entry, values)
        if is_short then return {'gone'} end
      end
    end
    all[s] = values
  end
  for s = 1, #scopes do hold(scopes[s], all[s], amounts) end
  for _, apart in ipairs(taken) do call('HDEL', apart, id) end
  local record = {argv[op[3]], amounts, op[5], op[6], NOTHING_TOLD}
  remember(id, record)
  renew(id, op[7])
  catch_up(id, record, news_for(record))
  return {'done'}
end
