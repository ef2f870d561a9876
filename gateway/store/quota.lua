-- Every limit of a request, checked and counted in one atomic step: all or nothing.
--
-- It is a library of one function, so that it is compiled and set up once. Its first argument is a
-- MessagePack list of operations, done in order; the arguments after it are lists of scopes that
-- they name by number. The answer is MessagePack too:
-- {epoch, built_us, now_us, {answer, ...}}, or {false, 0, now_us, {}} where there is no epoch, which
-- means that what was counted here is lost. `gateway.services.quotas.wire` has the shapes.
--
-- A scope is a hash. Its fields, for a limit called `f`:
--   f            a rate: the theoretical arrival time of GCRA, in us since 2025, with fractions
--                (https://en.wikipedia.org/wiki/Generic_cell_rate_algorithm), or a count: how many
--   f:u:S f:h:S  a window's slot that starts at S: what was used in it and what is held
--   f:l f:p      the newest slot that was counted, and the one before it
-- A slot is never reset: the next one has another name. A window without `f:l` has not been
-- counted here, and asks to be loaded from the ledger.
--
-- A reservation is a hash r:<id>: `d` what it holds, `k` what was last told of its use. Its lease is
-- its score in `leases`. One that runs out is reaped: what was told is charged, the rest is let go,
-- and the bill is left in `orphans` for whoever sweeps. A tombstone t:<id> outlives a settled one, so
-- that a delayed repetition cannot hold anything again; x:<id> remembers what a reaped one was
-- charged, so that a late settle corrects it.
--
-- Numbers are doubles: exact up to 2^53, which bounds every amount (`MAX_AMOUNT`).

local P = 'sluice:q:'
local LEASES, ORPHANS, EPOCH, GATEWAYS = P .. 'leases', P .. 'orphans', P .. 'epoch', P .. 'gateways'
local BASE_S = 1735689600
local MINUTE_US = 60000000
local TOMBSTONE_MS, REAPED_MS = 120000, 86400000
local RATE, COUNT, WINDOW = 1, 2, 3
local REQUESTS, INPUT, OUTPUT, QUEUED, TOKENS, NANO = 1, 2, 3, 5, 6, 7

-- A scope is {key, fields, entries}: the fields are read in one call, and an entry says where its
-- own begin. Names come made, as putting them together here would cost more than all the rest.
-- An entry is {kind, amount's index, limit, position}, and for a window also {hard, start, end,
-- slots, name, oldest, width}; its fields are f:l and then f:u and f:h of each slot, the newest last.
local KIND, AMOUNT, LIMIT, AT, HARD, START, END, SLOTS, NAME, OLDEST, WIDTH =
  1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11

-- Not there yet while a library is loaded: the first run gets them.
local call, floor, ceil, max

-- Of the call that runs: its arguments, its time, and until when hard limits let nothing through.
local argv, now_s, now, built_us, reaped

-- Scopes as they came, and what they unpack to: the same few come again and again.
local unpacked, num_unpacked = {}, 0
local MAX_UNPACKED = 500

local function unpack_scopes(packed)
  local scopes = unpacked[packed]
  if not scopes then
    if num_unpacked >= MAX_UNPACKED then unpacked, num_unpacked = {}, 0 end
    scopes = cmsgpack.unpack(packed)
    unpacked[packed], num_unpacked = scopes, num_unpacked + 1
  end
  return scopes
end

local function read(scope)
  return call('HMGET', scope[1], unpack(scope[2]))
end

-- What a window has used and holds, over all of its slots.
local function sums(entry, values)
  local used, held, at = 0, 0, entry[AT] + 1
  for _ = 1, entry[SLOTS] do
    used, held = used + (tonumber(values[at]) or 0), held + (tonumber(values[at + 1]) or 0)
    at = at + 2
  end
  return used, held
end

-- Where the fields of a window's newest slot are.
local function newest(entry)
  return entry[AT] + 2 * entry[SLOTS] - 1
end

-- What is left of a limit, and in how many us it is whole again (a window: begins anew).
local function room(entry, values)
  local limit = entry[LIMIT]
  if entry[KIND] == RATE then
    if limit == 0 then return 0, 0 end
    local ahead = max((tonumber(values[entry[AT]]) or 0) - now, 0)
    return floor((MINUTE_US - ahead) * limit / MINUTE_US + 1e-6), ceil(ahead)
  elseif entry[KIND] == COUNT then
    return max(limit - (tonumber(values[entry[AT]]) or 0), 0), 0
  end
  local used, held = sums(entry, values)
  return max(limit - used - held, 0), (entry[END] - now_s) * 1000000
end

-- Why an amount does not fit: nil where it does; else a wait in us, or -1: never, or -2: not in this
-- window; then what is left, and what is used. A wait of 0 is for someone else to end.
local function refusal(entry, values, amount)
  local limit = entry[LIMIT]
  if entry[KIND] == RATE then
    if amount == 0 then return nil end
    if amount > limit then return -1, 0, 0 end
    local cost = amount * MINUTE_US / limit
    local over = max(tonumber(values[entry[AT]]) or 0, now) + cost - (now + MINUTE_US)
    -- Fractions of a microsecond are the arithmetic's, not the caller's.
    if over > 0.5 then
      local left = room(entry, values)
      return ceil(over), left, limit - left
    end
  elseif entry[KIND] == COUNT then
    local value = tonumber(values[entry[AT]]) or 0
    if amount > limit then return -1, limit, 0 end
    if value + amount > limit then return 0, limit - value, value end
  elseif entry[HARD] == 1 then
    local used, held = sums(entry, values)
    if used + held + amount > limit then
      return used + amount <= limit and 0 or -2, max(limit - used - held, 0), used
    end
  end
  return nil
end

-- Forget slots that no request can still be charged to.
local function drop_old_slots(key, entry, last)
  local name, width = entry[NAME], entry[WIDTH]
  if entry[SLOTS] == 1 then
    local before = call('HGET', key, name .. ':p')
    if before then call('HDEL', key, name .. ':u:' .. before, name .. ':h:' .. before) end
    call('HSET', key, name .. ':p', last)
    return
  end
  local slot = last - (entry[START] - entry[OLDEST])
  for _ = 1, 40 do
    if slot >= entry[OLDEST] - width then return end
    call('HDEL', key, name .. ':u:' .. slot, name .. ':h:' .. slot)
    slot = slot + width
  end
end

-- Hold amounts in a scope that was read; `values` are brought up to date.
local function hold(scope, values, amounts)
  local key, fields, new = scope[1], scope[2], {}
  for i = 1, #scope[3] do
    local entry = scope[3][i]
    local amount, at = amounts[entry[AMOUNT]], entry[AT]
    if entry[KIND] == RATE then
      if entry[LIMIT] > 0 and amount ~= 0 then
        values[at] = max(tonumber(values[at]) or 0, now) + amount * MINUTE_US / entry[LIMIT]
        new[#new + 1], new[#new + 2] = fields[at], values[at]
      end
    elseif entry[KIND] == COUNT then
      values[at] = (tonumber(values[at]) or 0) + amount
      new[#new + 1], new[#new + 2] = fields[at], values[at]
    else
      local last = tonumber(values[at])
      if last and last < entry[START] then
        drop_old_slots(key, entry, last)
        new[#new + 1], new[#new + 2] = fields[at], entry[START]
      end
      local held_at = newest(entry) + 1
      values[held_at] = (tonumber(values[held_at]) or 0) + amount
      new[#new + 1], new[#new + 2] = fields[held_at], values[held_at]
    end
  end
  if #new > 0 then call('HSET', key, unpack(new)) end
end

-- Let go of what is held and count what was used. Slots that are gone are left alone. Returns how
-- far windows are used, those above a quarter: {scope, entry, used, ...}.
local function release(scopes, held, used)
  local windows = {}
  for s = 1, #scopes do
    local scope = scopes[s]
    local values, fields, new = read(scope), scope[2], {}
    for i = 1, #scope[3] do
      local entry = scope[3][i]
      local was, is, at = held[entry[AMOUNT]], used[entry[AMOUNT]], entry[AT]
      if entry[KIND] == RATE then
        if entry[LIMIT] > 0 and was ~= is then
          local arrival = tonumber(values[at]) or 0
          new[#new + 1], new[#new + 2] = fields[at], arrival - (was - is) * MINUTE_US / entry[LIMIT]
        end
      elseif entry[KIND] == COUNT then
        if was ~= 0 then
          new[#new + 1], new[#new + 2] = fields[at], max((tonumber(values[at]) or 0) - was, 0)
        end
      else
        local used_at = newest(entry)
        if values[used_at + 1] then
          local left = max(tonumber(values[used_at + 1]) - was, 0)
          new[#new + 1], new[#new + 2] = fields[used_at + 1], left
          if values[at] then
            values[used_at] = (tonumber(values[used_at]) or 0) + is
            new[#new + 1], new[#new + 2] = fields[used_at], values[used_at]
            local total = sums(entry, values)
            -- Who watches thresholds has none below a quarter.
            if total * 4 >= entry[LIMIT] then
              windows[#windows + 1], windows[#windows + 2], windows[#windows + 3] = s, i, total
            end
          end
        end
      end
    end
    if #new > 0 then call('HSET', scope[1], unpack(new)) end
  end
  return windows
end

-- A record is its scopes, as they came, and beside them {amounts, at, meta}.
local function remember(id, scopes, amounts, at, meta, lease_us)
  call('HSET', P .. 'r:' .. id, 's', scopes, 'd', cmsgpack.pack({amounts, at, meta}))
  call('ZADD', LEASES, now + lease_us, id)
end

local function recall(id)
  local packed = call('HMGET', P .. 'r:' .. id, 's', 'd')
  if not packed[2] then return nil end
  local data = cmsgpack.unpack(packed[2])
  return {s = unpack_scopes(packed[1]), packed = packed[1], a = data[1], at = data[2], m = data[3]}
end

local function rewrite(id, record)
  call('HSET', P .. 'r:' .. id, 'd', cmsgpack.pack({record.a, record.at, record.m}))
end

local function bury(id)
  call('DEL', P .. 'r:' .. id)
  call('ZREM', LEASES, id)
  call('SET', P .. 't:' .. id, 1, 'PX', TOMBSTONE_MS)
end

-- End a reservation whose process no longer renews it, at what was last told of it.
local function reap(id)
  local record = recall(id)
  call('ZREM', LEASES, id)
  if not record then return end
  local told = call('HGET', P .. 'r:' .. id, 'k')
  local use = told and cmsgpack.unpack(told) or {0, 0, 0, 0}
  -- The request itself happened: its rate stays charged.
  local used = {record.a[1], use[1] - use[2], use[3], 0, 0, use[1] + use[3], use[4]}
  release(record.s, record.a, used)
  call('DEL', P .. 'r:' .. id)
  call('SET', P .. 'x:' .. id, cmsgpack.pack({record.packed, used}), 'PX', REAPED_MS)
  if use[1] > 0 then call('HSET', ORPHANS, id, cmsgpack.pack({record.at, record.m, use})) end
end

local function reap_expired(limit)
  local expired = call('ZRANGEBYSCORE', LEASES, '-inf', now, 'LIMIT', 0, limit)
  for i = 1, #expired do
    local id = expired[i] reap(id) end
  return #expired
end

local ops = {}

-- {'reserve', id, scopes, amounts, meta, lease_us} ->
--   {'held', at_us, {tightest on requests, tightest on tokens}}, each {scope, entry, left,
--   whole in us} or false
--   {'denied', scope, entry, wait, left, used} | {'stale'} | {'building', wait_us}
--   {'unknown', scope, entry}: load it and ask again | {'settled'}
-- `scopes` is the number of the argument that has them, packed.
function ops.reserve(op)
  local id, packed, amounts = op[2], argv[op[3]], op[4]
  if call('EXISTS', P .. 't:' .. id) == 1 then return {'settled'} end
  local known = call('HGET', P .. 'r:' .. id, 'd')
  if known then return {'held', cmsgpack.unpack(known)[2], {}} end
  local scopes, all, worst = unpack_scopes(packed), {}, nil
  for s = 1, #scopes do
    local scope = scopes[s]
    local values = read(scope)
    all[s] = values
    for i = 1, #scope[3] do
      local entry = scope[3][i]
      if entry[KIND] == WINDOW then
        if now_s < entry[START] or now_s >= entry[END] then return {'stale'} end
        if entry[HARD] == 1 and now < built_us then return {'building', built_us - now} end
        if not values[entry[AT]] then return {'unknown', s, i} end
      end
      local wait, left, used = refusal(entry, values, amounts[entry[AMOUNT]])
      -- What never fits is said first, then what this window has no more of, then the longest wait.
      if wait and (not worst or (worst[4] >= 0 and (wait < 0 or wait > worst[4]))
          or (worst[4] == -2 and wait == -1)) then
        worst = {'denied', s, i, wait, left, used}
      end
    end
  end
  if worst then return worst end
  local requests, tokens
  for s = 1, #scopes do
    local scope = scopes[s]
    local values = all[s]
    hold(scope, values, amounts)
    for i = 1, #scope[3] do
      local entry = scope[3][i]
      local kind = entry[AMOUNT]
      if kind == REQUESTS or kind == INPUT or kind == OUTPUT or kind == TOKENS then
        local left, whole_us = room(entry, values)
        if kind == REQUESTS then
          if not requests or left < requests[3] then requests = {s, i, left, whole_us} end
        elseif not tokens or left < tokens[3] then
          tokens = {s, i, left, whole_us}
        end
      end
    end
  end
  remember(id, packed, amounts, now, op[5], op[6])
  return {'held', now, {requests or false, tokens or false}}
end

-- {'extend', id, tokens, nano, lease_us, {input, cached, output, nano so far}} ->
--   {'held', tokens}, as many of them as fit, or {'gone'}
function ops.extend(op)
  local id, tokens, nano = op[2], op[3], op[4]
  local record = recall(id)
  if not record then return {'gone'} end
  local all, fits = {}, tokens
  local cost = {[OUTPUT] = 1, [TOKENS] = 1, [NANO] = nano / tokens}
  for s = 1, #record.s do
    local scope = record.s[s]
    all[s] = read(scope)
    for i = 1, #scope[3] do
      local entry = scope[3][i]
      local each = cost[entry[AMOUNT]]
      if each and each > 0 and (entry[KIND] == RATE or entry[HARD] == 1) then
        local left = room(entry, all[s])
        fits = math.min(fits, floor(left / each))
      end
    end
  end
  call('ZADD', LEASES, now + op[5], id)
  call('HSET', P .. 'r:' .. id, 'k', cmsgpack.pack(op[6]))
  if fits < 1 then return {'held', 0} end
  local more = {0, 0, fits, 0, 0, fits, ceil(fits * nano / tokens)}
  for s = 1, #record.s do
    local scope = record.s[s] hold(scope, all[s], more) end
  for i = 1, #more do record.a[i] = record.a[i] + more[i] end
  rewrite(id, record)
  return {'held', fits}
end

-- {'settle', id, amounts} -> {'done', {scope, entry, used, ...}} | {'nothing'}
function ops.settle(op)
  local id, used = op[2], op[3]
  local record = recall(id)
  if record then
    local windows = release(record.s, record.a, used)
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
    call('SET', P .. 't:' .. id, 1, 'PX', TOMBSTONE_MS)
    return {'done', release(unpack_scopes(charged[1]), nothing, more)}
  end
  -- A reservation that was given up may still be on its way.
  call('SET', P .. 't:' .. id, 1, 'PX', TOMBSTONE_MS)
  return {'nothing'}
end

-- {'begun', id}: its prompt waits no longer.
function ops.begun(op)
  local record = recall(op[2])
  if not record or record.a[QUEUED] == 0 then return {'nothing'} end
  for i = 1, #record.s do
    local scope = record.s[i]
    for i = 1, #scope[3] do
      local entry = scope[3][i]
      if entry[AMOUNT] == QUEUED then
        local field = scope[2][entry[AT]]
        local value = tonumber(call('HGET', scope[1], field)) or 0
        call('HSET', scope[1], field, max(value - record.a[QUEUED], 0))
      end
    end
  end
  record.a[QUEUED] = 0
  rewrite(op[2], record)
  return {'done'}
end

-- {'keep', gateway, lease_us, {{id, input, cached, output, nano}, ...}} ->
--   {'kept', gateways alive, {id, reaped?, ...} that hold nothing any more}
function ops.keep(op)
  local gone = {}
  for i = 1, #op[4] do
    local told = op[4][i]
    local id = told[1]
    if call('ZSCORE', LEASES, id) then
      call('ZADD', LEASES, now + op[3], id)
      call('HSET', P .. 'r:' .. id, 'k', cmsgpack.pack({told[2], told[3], told[4], told[5]}))
    elseif call('EXISTS', P .. 't:' .. id) == 0 then
      gone[#gone + 1] = id
      gone[#gone + 1] = call('EXISTS', P .. 'x:' .. id)
    end
  end
  call('ZADD', GATEWAYS, now, op[2])
  call('ZREMRANGEBYSCORE', GATEWAYS, '-inf', now - 15000000)
  return {'kept', call('ZCARD', GATEWAYS), gone}
end

-- {'assert', id, scopes, amounts, at_us, meta, lease_us}: hold again what was granted before.
function ops.assert(op)
  local id = op[2]
  if call('EXISTS', P .. 't:' .. id) == 1 or recall(id) then return {'known'} end
  for _, scope in ipairs(unpack_scopes(argv[op[3]])) do
    hold(scope, read(scope), op[4])
  end
  remember(id, argv[op[3]], op[4], op[5], op[6], op[7])
  return {'done'}
end

-- {'load', scope, field, start, {slot, used, ...}}: learn from the ledger what was used, once.
function ops.load(op)
  local key, name = op[2], op[3]
  local last = tonumber(call('HGET', key, name .. ':l'))
  if last and last >= op[4] then return {'known'} end
  local pairs_ = {name .. ':l', op[4]}
  for i = 1, #op[5], 2 do
    pairs_[#pairs_ + 1] = name .. ':u:' .. op[5][i]
    pairs_[#pairs_ + 1] = op[5][i + 1]
  end
  call('HSET', key, unpack(pairs_))
  return {'done'}
end

-- {'forget', scope, field}: what was used is to be loaded anew; what is held stays.
function ops.forget(op)
  call('HDEL', op[2], op[3] .. ':l')
  return {'done'}
end

-- {'repair', scope, field, slot, seen, more}: correct what was used by `more`, if it is still as it
-- was seen; with a `seen` of -1 in any case.
function ops.repair(op)
  local key, field = op[2], op[3] .. ':u:' .. op[4]
  local used = tonumber(call('HGET', key, field)) or 0
  if op[5] >= 0 and used ~= op[5] then return {'nothing'} end
  call('HSET', key, field, math.max(used + op[6], 0))
  return {'done'}
end

-- {'look', scopes} -> {'seen', {left, whole_in_us, used, held, used in this slot, ...}}
function ops.look(op)
  local seen = {}
  for _, scope in ipairs(unpack_scopes(argv[op[2]])) do
    local values = read(scope)
    for i = 1, #scope[3] do
      local entry = scope[3][i]
      local left, whole_us = room(entry, values)
      local used, held, used_now = 0, 0, 0
      if entry[KIND] == WINDOW then
        used, held = sums(entry, values)
        used_now = tonumber(values[newest(entry)]) or 0
      elseif entry[KIND] == RATE then
        used = entry[LIMIT] - left
      else
        held = tonumber(values[entry[AT]]) or 0
      end
      for _, value in ipairs({left, whole_us, used, held, used_now}) do
        seen[#seen + 1] = value
      end
    end
  end
  return {'seen', seen}
end

-- {'sweep', limit} -> {'swept', how many were reaped, leases, {id, {at_us, meta, use}, ...}}, the
-- last of those that are to be billed.
function ops.sweep(op)
  local num = reaped + reap_expired(op[2])
  local found, orphans = call('HRANDFIELD', ORPHANS, op[2], 'WITHVALUES'), {}
  for i = 1, #found, 2 do
    orphans[i], orphans[i + 1] = found[i], cmsgpack.unpack(found[i + 1])
  end
  return {'swept', num, call('ZCARD', LEASES), orphans}
end

-- {'billed', {id, ...}}: these orphans are in the ledger.
function ops.billed(op)
  if #op[2] > 0 then call('HDEL', ORPHANS, unpack(op[2])) end
  return {'done'}
end

local function run(_, args)
  if not call then call, floor, ceil, max = redis.call, math.floor, math.ceil, math.max end
  local time = call('TIME')
  argv, now_s = args, tonumber(time[1])
  now = (now_s - BASE_S) * 1000000 + tonumber(time[2])
  local todo, epoch = cmsgpack.unpack(args[1]), call('GET', EPOCH)
  -- {'found', epoch, build_us}: begin to count; hard limits let nothing through while others may
  -- still come back with what they hold.
  if todo[1] and todo[1][1] == 'found' then
    if not epoch then
      epoch = todo[1][2] .. ':' .. string.format('%.0f', now + todo[1][3])
      call('SET', EPOCH, epoch)
    end
    todo = {}
  end
  if not epoch then return cmsgpack.pack({false, 0, now, {}}) end
  local colon = string.find(epoch, ':', 1, true)
  built_us = tonumber(string.sub(epoch, colon + 1))
  reaped = reap_expired(16)
  local answers = {}
  for i = 1, #todo do
    local op = todo[i]
    answers[i] = ops[op[1]](op)
  end
  return cmsgpack.pack({string.sub(epoch, 1, colon - 1), built_us, now, answers})
end

redis.register_function(LIBRARY, run)
