-- How limits are kept: the first of the parts that make the quota library (`quota_counters.py`).
--
-- A scope (a key, a tenant, an organisation, the platform) is one string, so that it is read and
-- written at once: the names of its fields in order, each followed by a space, a zero byte, and
-- their values as doubles. For a limit called `f` its fields are
--   f            a count: how many
--   f:n f:t      a rate: how much was in its leaky bucket, with fractions, and when that was, in us
--                since 2025 (https://en.wikipedia.org/wiki/Leaky_bucket). An amount and no time by
--                which it is gone, so that it means the same whatever the limit becomes
--   f:u:S f:h:S  a window's slot that starts at S: what was used in it and what is held
--   f:l          the newest slot that was counted
--   f:g          the change of the scope's limits that it was loaded for, in us since 1970
-- A slot is never reset: the next one has another name. A window without `f:l`, or whose limits were
-- changed since `f:g`, asks to be loaded from the ledger: requests may have run without it. So does one
-- with a `f:g` of -1: a bill has come that was not known here. What settles in a window without `f:l`
-- waits in the hash w:<scope>:<f>, as <id>:<slot>: the ledger that is loaded may have it or not.
--
-- Where each name stands is worked out once and kept until the names change, which they do when a
-- window begins its next slot and when limits come or go. So a check costs two calls for a scope,
-- whatever it is limited in.
--
-- Numbers are doubles: exact up to 2^53, which bounds every amount (`MAX_AMOUNT`).

local P, BASE_S = 'sluice:q:', 1735689600
local MINUTE_US = 60000000
local RATE, COUNT, WINDOW = 1, 2, 3
local REQUESTS, INPUT, OUTPUT, QUEUED, TOKENS, NANO = 1, 2, 3, 5, 6, 7
local REAPED_MS = 86400000
local NOTHING, MAX_KEPT, HUGE = '\0', 2000, 1e300

-- Not there yet while a library is loaded: each run gets them.
local call, floor, ceil, max, sub, pack_values, unpack_values

-- Of the call that runs: its arguments, its time, the epoch's name, and until when hard limits let
-- nothing through.
local argv, now_s, now, living, built_us

-- Keep what was worked out for a string, up to a number of them.
local function kept(make)
  local made, num = {}, 0
  return function(text)
    local one = made[text]
    if not one then
      if num >= MAX_KEPT then made, num = {}, 0 end
      one = make(text)
      made[text], num = one, num + 1
    end
    return one
  end
end

-- A layout is what the names at the head of a scope say.
local layout_of = kept(function(head)
  local names, at = {}, {}
  for name in string.gmatch(head, '[^ %z]+') do
    names[#names + 1] = name
    at[name] = #names
  end
  return {head = head, length = #head, names = names, at = at, format = '<' .. string.rep('d', #names)}
end)

-- Note where a scope's limits have their values. It is whole if all that a reservation writes is
-- there; where a field is not, its place is nil, and so is what is read from it. `unknown` is the
-- first of its windows that was not counted here.
local function bind(scope, layout)
  local at, is_whole = layout.at, true
  scope.unknown = nil
  for i = #scope.entries, 1, -1 do
    local entry = scope.entries[i]
    if entry.kind == WINDOW then
      entry.all_used, entry.all_held = {}, {}
      for slot = entry.oldest, entry.start, entry.width do
        local used, held = at[entry.name .. ':u:' .. slot], at[entry.name .. ':h:' .. slot]
        entry.all_used[#entry.all_used + 1], entry.all_held[#entry.all_held + 1] = used, held
        entry.used, entry.held = used, held
      end
      entry.at, entry.loaded = at[entry.name .. ':l'], at[entry.name .. ':g']
      if not (entry.at and entry.loaded) then scope.unknown = i end
      is_whole = is_whole and entry.used and entry.held
    elseif entry.kind == RATE then
      entry.at, entry.since = at[entry.name .. ':n'], at[entry.name .. ':t']
      is_whole = is_whole and entry.at
    else
      entry.at = at[entry.name]
      is_whole = is_whole and entry.at
    end
  end
  scope.layout, scope.is_whole = layout, is_whole
end

-- It is good from `start` until `stop`, while all of its windows are in the slot that they name.
-- It is sent as {key, {entry, ...}, when the scope's limits were changed}, an entry being {kind, amount's
-- index, limit, name}, for a rate also {us for each of its units}, for a window {hard, start, end, oldest
-- slot, width of a slot, when the scope's limits were changed}; of one that a running request was put
-- into, also whether it was new to it.
local scope_of = kept(function(packed)
  local sent = cmsgpack.unpack(packed)
  local scope = {key = sent[1], entries = {}, has_hard = false, start = 0, stop = HUGE}
  scope.changed = sent[3] or 0
  for i, from in ipairs(sent[2]) do
    local entry = {kind = from[1], amount = from[2], limit = from[3], name = from[4]}
    if entry.kind == RATE then
      entry.each_us = from[5]
    elseif entry.kind == WINDOW then
      entry.is_hard, entry.start, entry.stop = from[5] == 1, from[6], from[7]
      entry.oldest, entry.width = from[8], from[9]
      entry.changed, entry.is_late = from[10], from[11]
      scope.has_hard = scope.has_hard or entry.is_hard
      scope.start, scope.stop = math.max(scope.start, entry.start), math.min(scope.stop, entry.stop)
    end
    scope.entries[i] = entry
  end
  bind(scope, layout_of(NOTHING))
  return scope
end)

-- The same few limits come again and again: the scopes of the platform with every request. Those that
-- have no limits, and come last, only tell of what change their gateway has heard.
local scopes_of = kept(function(packed)
  local sent, scopes = cmsgpack.unpack(packed), {heard = {}}
  for i = 1, #sent do
    local scope = scope_of(sent[i])
    if scope.changed > 0 then scopes.heard[scope.key] = scope.changed end
    if #scope.entries > 0 then scopes[#scopes + 1] = scope end
  end
  return scopes
end)

local function head_of(stored)
  return sub(stored, 1, string.find(stored, '\0', 1, true))
end

-- A scope that lists these entries, where they are bound to.
local function scope_with(key, entries)
  return scope_of(cmsgpack.pack({key, entries}))
end

-- Read a scope's values, where its limits are bound to.
local function read(scope)
  local stored = call('GET', scope.key) or NOTHING
  local layout = scope.layout
  if sub(stored, 1, layout.length) ~= layout.head then
    layout = layout_of(head_of(stored))
    bind(scope, layout)
  end
  return {unpack_values(layout.format, stored, layout.length + 1)}
end

local function write(scope, values)
  local layout = scope.layout
  call('SET', scope.key, layout.head .. pack_values(layout.format, unpack(values)))
end

-- The values by their names, for what is seldom done.
local function named(layout, values)
  local fields = {}
  for i = 1, #layout.names do fields[layout.names[i]] = values[i] end
  return fields
end

local function read_named(key)
  local stored = call('GET', key) or NOTHING
  local layout = layout_of(head_of(stored))
  return named(layout, {unpack_values(layout.format, stored, layout.length + 1)})
end

local function arrange(fields)
  local names, values = {}, {}
  for name in pairs(fields) do names[#names + 1] = name end
  table.sort(names)
  for i = 1, #names do values[i], names[i] = fields[names[i]], names[i] .. ' ' end
  return layout_of(table.concat(names) .. NOTHING), values
end

local function write_named(key, fields)
  local layout, values = arrange(fields)
  call('SET', key, layout.head .. pack_values(layout.format, unpack(values)))
end

-- Let a window begin the slot that it is in now, and forget those that no request can still be
-- charged to: of a calendar's all before the one that was the newest, of a rolling one's all but one
-- before its oldest.
local function roll(entry, fields)
  local name = entry.name
  local last = fields[name .. ':l']
  if not last or last >= entry.start then return end
  local keep_from = entry.oldest == entry.start and last or entry.oldest - entry.width
  for field in pairs(fields) do
    if sub(field, 1, #name + 1) == name .. ':' then
      local slot = tonumber(string.match(field, '^:[uh]:(%d+)$', #name + 1) or nil)
      if slot and slot < keep_from then fields[field] = nil end
    end
  end
  fields[name .. ':l'] = entry.start
end

-- Read a scope with all that a reservation writes. Nothing is stored before `write`.
local function read_whole(scope)
  local values, entries = read(scope), scope.entries
  if scope.is_whole then return values end
  local fields = named(scope.layout, values)
  for i = 1, #entries do
    local entry = entries[i]
    local name = entry.name
    if entry.kind == WINDOW then
      roll(entry, fields)
      for _, slot in ipairs({name .. ':u:' .. entry.start, name .. ':h:' .. entry.start}) do
        fields[slot] = fields[slot] or 0
      end
    elseif entry.kind == RATE then
      fields[name .. ':n'] = fields[name .. ':n'] or 0
      fields[name .. ':t'] = fields[name .. ':t'] or now
    else
      fields[name] = fields[name] or 0
    end
  end
  local layout
  layout, values = arrange(fields)
  bind(scope, layout)
  return values
end

-- What a window has used and holds, over all of its slots.
local function sums(entry, values)
  local used, held, all_used, all_held = 0, 0, entry.all_used, entry.all_held
  for i = 1, #all_used do used = used + values[all_used[i]] end
  for i = 1, #all_held do held = held + values[all_held[i]] end
  return used, held
end

-- What of a rate is used now: what was, less what its limit has given back since. Above the limit
-- only where that was lowered; it is full then, and no more than full, as nobody should wait longer.
local function level(entry, values)
  local limit, was = entry.limit, values[entry.at]
  if was > limit then was = limit end
  return max(was - max(now - values[entry.since], 0) / entry.each_us, 0)
end

-- What is left of a limit, and in how many us it is whole again (a window: begins anew).
local function room(entry, values)
  local limit = entry.limit
  if entry.kind == RATE then
    local used = entry.at and level(entry, values) or 0
    return floor(limit - used + 1e-6), ceil(used * entry.each_us)
  elseif entry.kind == COUNT then
    return max(limit - (values[entry.at] or 0), 0), 0
  end
  local used, held = sums(entry, values)
  return max(limit - used - held, 0), (entry.stop - now_s) * 1000000
end
