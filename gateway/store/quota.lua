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
-- counted here, and asks to be loaded from the ledger. What settles before it is waits in the hash
-- w:<scope>:<f>, as <id>:<slot>: the ledger that is loaded may have it or not.
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
local TOMBSTONE_MS, REAPED_MS, REPAIRED_MS = 120000, 86400000, 30000
local RATE, COUNT, WINDOW = 1, 2, 3
local REQUESTS, INPUT, OUTPUT, QUEUED, TOKENS, NANO = 1, 2, 3, 5, 6, 7

-- A scope is {key, fields, entries}: the fields are read in one call, and an entry says where its
-- own begin. Names come made, as putting them together here would cost more than all the rest.
-- An entry is {kind, amount's index, limit, position}, for a rate also {us for each of its units},
-- for a window {hard, start, end, slots, name, oldest, width}; a window's fields are f:l and then f:u
-- and f:h of each slot, the newest last.
local KIND, AMOUNT, LIMIT, AT = 1, 2, 3, 4
local HARD, START, END, SLOTS, NAME, OLDEST, WIDTH = 5, 6, 7, 8, 9, 10, 11
local EACH, math_huge = 5, 1e300

-- Not there yet while a library is loaded: the first run gets them.
local call, floor, ceil, max

-- Of the call that runs: its arguments, its time, and until when hard limits let nothing through.
local argv, now_s, now, built_us, reaped
local reap_us, REAP_EVERY_US = 0, 100000
-- After a silence nobody could renew, or settle: nothing is reaped until everybody had the time to.
local called_us, back_us = 0, 0
local SILENCE_US, RETURN_US = 5000000, 3000000

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

-- Read a scope: a number for each of its fields, false where there is none.
local function read(scope)
  local values = call('HMGET', scope[1], unpack(scope[2]))
  for i = 1, #values do
    local value = values[i]
    if value then values[i] = tonumber(value) end
  end
  return values
end

-- What a window has used and holds, over all of its slots.
local function sums(entry, values)
  local used, held, at = 0, 0, entry[AT] + 1
  for _ = 1, entry[SLOTS] do
    used, held = used + (values[at] or 0), held + (values[at + 1] or 0)
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
    local ahead = max((values[entry[AT]] or 0) - now, 0)
    return floor((MINUTE_US - ahead) * limit / MINUTE_US + 1e-6), ceil(ahead)
  elseif entry[KIND] == COUNT then
    return max(limit - (values[entry[AT]] or 0), 0), 0
  end
  local used, held = sums(entry, values)
  return max(limit - used - held, 0), (entry[END] - now_s) * 1000000
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

-- Let windows begin the slot that they are in now.
local function roll(scope, values)
  for i = 1, #scope[3] do
    local entry = scope[3][i]
    local last = entry[KIND] == WINDOW and values[entry[AT]]
    if last and last < entry[START] then
      drop_old_slots(scope[1], entry, last)
      call('HSET', scope[1], scope[2][entry[AT]], entry[START])
      values[entry[AT]] = entry[START]
    end
  end
end

-- Hold amounts in a scope that was read; `values` are brought up to date.
local function hold(scope, values, amounts)
  local key, fields, entries, new, n = scope[1], scope[2], scope[3], {}, 0
  roll(scope, values)
  for i = 1, #entries do
    local entry = entries[i]
    local kind, amount, at = entry[KIND], amounts[entry[AMOUNT]], entry[AT]
    local value
    if kind == WINDOW then
      at = newest(entry) + 1
      value = (values[at] or 0) + amount
    elseif kind == COUNT then
      value = (values[at] or 0) + amount
    elseif amount ~= 0 and entry[LIMIT] > 0 then
      value = max(values[at] or 0, now) + amount * MINUTE_US / entry[LIMIT]
    end
    if value then
      values[at], new[n + 1], new[n + 2] = value, fields[at], value
      n = n + 2
    end
  end
  if n > 0 then call('HSET', key, unpack(new)) end
end

-- Let go of what is held and count what was used. Slots that are gone are left alone. Returns how
-- far windows are used, those above a quarter: {scope, entry, used, ...}.
local function release(id, scopes, held, used)
  local windows, num = {}, 0
  for s = 1, #scopes do
    local scope = scopes[s]
    local values, fields, entries, new, n = read(scope), scope[2], scope[3], {}, 0
    for i = 1, #entries do
      local entry = entries[i]
      local kind, at = entry[KIND], entry[AT]
      local was, is = held[entry[AMOUNT]], used[entry[AMOUNT]]
      if kind == RATE then
        if was ~= is and entry[LIMIT] > 0 then
          new[n + 1] = fields[at]
          new[n + 2] = (values[at] or 0) - (was - is) * MINUTE_US / entry[LIMIT]
          n = n + 2
        end
      elseif kind == COUNT then
        if was ~= 0 then
          new[n + 1], new[n + 2] = fields[at], max((values[at] or 0) - was, 0)
          n = n + 2
        end
      else
        local used_at = newest(entry)
        local holds = values[used_at + 1]
        if holds then
          new[n + 1], new[n + 2] = fields[used_at + 1], max(holds - was, 0)
          n = n + 2
          if values[at] then
            values[used_at] = (values[used_at] or 0) + is
            new[n + 1], new[n + 2] = fields[used_at], values[used_at]
            n = n + 2
            local total = sums(entry, values)
            -- Who watches thresholds has none below a quarter.
            if total * 4 >= entry[LIMIT] then
              windows[num + 1], windows[num + 2], windows[num + 3] = s, i, total
              num = num + 3
            end
          elseif is ~= 0 then
            local waiting = P .. 'w:' .. scope[1] .. ':' .. entry[NAME]
            call('HINCRBY', waiting, id .. ':' .. entry[START], string.format('%.0f', is))
            call('PEXPIRE', waiting, REAPED_MS)
          end
        end
      end
    end
    if n > 0 then call('HSET', scope[1], unpack(new)) end
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
  release(id, record.s, record.a, used)
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

-- Tell whether a lease that ran out is abandoned; a clock that went back is believed.
local function may_reap()
  return now >= back_us or now < back_us - RETURN_US
end

local ops = {}

-- Weigh an amount of a rate: its new arrival time and what is left, in fractions; or nil, then the
-- wait, what is left and what is used.
local function weigh_rate(entry, value, amount)
  local limit, each_us, after = entry[LIMIT], entry[EACH], now
  if value and value > now then after = value end
  if amount == 0 then return after, limit - (after - now) / each_us end
  if amount > limit then return nil, -1, 0, 0 end
  local before = after
  after = after + amount * each_us
  -- Fractions of a microsecond are the arithmetic's, not the caller's.
  if after - now > MINUTE_US + 0.5 then
    local left = floor((MINUTE_US - before + now) / each_us + 1e-6)
    return nil, ceil(after - now - MINUTE_US), left, limit - left
  end
  return after, (MINUTE_US - after + now) / each_us
end

-- Weigh an amount of a window: what it holds then in its newest slot, or nil; then as above.
local function weigh_window(entry, values, amount)
  local at, limit = entry[AT], entry[LIMIT]
  local used, held = values[at + 1] or 0, values[at + 2] or 0
  local holds = held
  if entry[SLOTS] > 1 then
    used, held = sums(entry, values)
    holds = values[newest(entry) + 1] or 0
  end
  local left = limit - used - held
  if amount > left and entry[HARD] == 1 then
    -- What others only hold may come back; what is used may not.
    return nil, used + amount <= limit and 0 or -2, max(left, 0), used
  end
  return holds + amount, left - amount
end

-- How the tightest of some limits stands: {scope, entry, left, whole in us}, or false.
local function stand(scopes, tightest, left)
  if not tightest then return false end
  local entry = scopes[tightest[1]][3][tightest[2]]
  local whole_us = entry[KIND] == RATE and ceil(tightest[3] - now) or (entry[END] - now_s) * 1000000
  return {tightest[1], tightest[2], max(floor(left + 1e-6), 0), whole_us}
end

-- {'reserve', id, scopes, amounts, meta, lease_us} ->
--   {'held', at_us, {tightest on requests, tightest on tokens}}, each {scope, entry, left,
--   whole in us} or false
--   {'denied', scope, entry, wait, left, used}: wait in us, or -1: never, or -2: not in this window;
--   0 is for someone else to end
--   {'stale'} | {'building', wait_us} | {'unknown', scope, entry}: load it and ask again | {'settled'}
-- `scopes` is the number of the argument that has them, packed.
function ops.reserve(op)
  local id, packed, amounts = op[2], argv[op[3]], op[4]
  if call('EXISTS', P .. 't:' .. id, P .. 'r:' .. id) > 0 then
    local known = recall(id)
    return known and {'held', known.at, {}} or {'settled'}
  end
  local scopes, writes, read_values, rolls, worst = unpack_scopes(packed), {}, {}, false, nil
  local requests, tokens, least_requests, least_tokens = false, false, math_huge, math_huge
  for s = 1, #scopes do
    local scope = scopes[s]
    local fields, entries, values, new, n = scope[2], scope[3], read(scope), {}, 0
    for i = 1, #entries do
      local entry = entries[i]
      local kind, index, at = entry[KIND], entry[AMOUNT], entry[AT]
      local after, left, wait, used
      if kind == RATE then
        after, left, wait, used = weigh_rate(entry, values[at], amounts[index])
      elseif kind == WINDOW then
        if now_s < entry[START] or now_s >= entry[END] then return {'stale'} end
        if entry[HARD] == 1 and now < built_us then return {'building', built_us - now} end
        local last = values[at]
        -- What refuses nothing is not loaded before everybody is back.
        if not last and now >= built_us then return {'unknown', s, i} end
        after, left, wait, used = weigh_window(entry, values, amounts[index])
        if last and last < entry[START] then rolls = true end
        at = at + 2 * entry[SLOTS]
      else
        used = values[at] or 0
        after = used + amounts[index]
        if after > entry[LIMIT] then
          left, wait = amounts[index] > entry[LIMIT] and -1 or 0, entry[LIMIT] - used
          after = nil
        end
      end
      if after then
        new[n + 1], new[n + 2] = fields[at], after
        n = n + 2
        if index == REQUESTS then
          if left < least_requests then least_requests, requests = left, {s, i, after} end
        elseif (index <= OUTPUT or index == TOKENS) and left < least_tokens then
          least_tokens, tokens = left, {s, i, after}
        end
      else
        -- A refusal comes with its wait first. What never fits is said first, then what this window
        -- has no more of, then the longest wait.
        left, wait = wait, left
        if not worst or (worst[4] >= 0 and (wait < 0 or wait > worst[4]))
            or (worst[4] == -2 and wait == -1) then
          worst = {'denied', s, i, wait, left, used}
        end
      end
    end
    writes[s], read_values[s] = new, values
  end
  if worst then return worst end
  for s = 1, #scopes do
    local scope = scopes[s]
    if rolls then roll(scope, read_values[s]) end
    call('HSET', scope[1], unpack(writes[s]))
  end
  remember(id, packed, amounts, now, op[5], op[6])
  return {'held', now, {stand(scopes, requests, least_requests), stand(scopes, tokens, least_tokens)}}
end

-- {'extend', id, tokens, nano, lease_us, {input, cached, output, nano so far}} ->
--   {'held', tokens}, as many of them as fit, or {'gone'}
--   {'building', wait_us} | {'unknown', scope, entry}: load it and ask again
function ops.extend(op)
  local id, tokens, nano = op[2], op[3], op[4]
  local record = recall(id)
  if not record then return {'gone'} end
  call('ZADD', LEASES, now + op[5], id)
  call('HSET', P .. 'r:' .. id, 'k', cmsgpack.pack(op[6]))
  local all, fits = {}, tokens
  local cost = {[OUTPUT] = 1, [TOKENS] = 1, [NANO] = nano / tokens}
  for s = 1, #record.s do
    local scope = record.s[s]
    all[s] = read(scope)
    for i = 1, #scope[3] do
      local entry = scope[3][i]
      local each = cost[entry[AMOUNT]]
      if each and each > 0 and (entry[KIND] == RATE or entry[HARD] == 1) then
        if entry[KIND] == WINDOW then
          if now < built_us then return {'building', built_us - now} end
          if not all[s][entry[AT]] then return {'unknown', s, i} end
        end
        local left = room(entry, all[s])
        fits = math.min(fits, floor(left / each))
      end
    end
  end
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
    local windows = release(id, record.s, record.a, used)
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
    return {'done', release(id, unpack_scopes(charged[1]), nothing, more)}
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

-- {'load', scope, field, start, {slot, used, ...}, {id, ...}, waiting}: learn from the ledger what
-- was used, once; it has these ids of those that wait, which are so many ->
--   {'done'} | {'known'} | {'building', wait_us}
--   {'waiting', {id, ...}}: read again, and say which of these the ledger has
function ops.load(op)
  local key, name, start = op[2], op[3], op[4]
  if now < built_us then return {'building', built_us - now} end
  local last = tonumber(call('HGET', key, name .. ':l'))
  if last and last >= start then return {'known'} end
  local used, has = {}, {}
  for i = 1, #op[5], 2 do used[tostring(op[5][i])] = op[5][i + 1] end
  local waiting = P .. 'w:' .. key .. ':' .. name
  local found = call('HGETALL', waiting)
  if #found / 2 ~= (op[7] or 0) then
    local ids = {}
    for i = 1, #found, 2 do ids[#ids + 1] = string.match(found[i], '^[^:]*') end
    return {'waiting', ids}
  end
  for _, id in ipairs(op[6] or {}) do has[id] = true end
  for i = 1, #found, 2 do
    local id, slot = string.match(found[i], '^([^:]*):(.*)$')
    if used[slot] and not has[id] then used[slot] = used[slot] + tonumber(found[i + 1]) end
  end
  local new = {name .. ':l', start}
  for slot, amount in pairs(used) do
    new[#new + 1], new[#new + 2] = name .. ':u:' .. slot, amount
  end
  call('HSET', key, unpack(new))
  call('DEL', waiting)
  return {'done'}
end

-- {'forget', scope, field}: what was used is to be loaded anew; what is held stays.
function ops.forget(op)
  call('HDEL', op[2], op[3] .. ':l')
  return {'done'}
end

-- {'repair', scope, field, slot, seen, more}: correct what was used by `more`, if it is still as it
-- was seen; with a `seen` of -1 in any case. Once in a while only: the operation may come twice,
-- and several gateways may have seen the same.
function ops.repair(op)
  local key, field = op[2], op[3] .. ':u:' .. op[4]
  local used = tonumber(call('HGET', key, field)) or 0
  if op[5] >= 0 and used ~= op[5] then return {'nothing'} end
  if not call('SET', P .. 'm:' .. key .. ':' .. field, 1, 'NX', 'PX', REPAIRED_MS) then
    return {'nothing'}
  end
  call('HSET', key, field, max(used + op[6], 0))
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
        used_now = values[newest(entry)] or 0
      elseif entry[KIND] == RATE then
        used = entry[LIMIT] - left
      else
        held = values[entry[AT]] or 0
      end
      for _, value in ipairs({left, whole_us, used, held, used_now}) do
        seen[#seen + 1] = value
      end
    end
  end
  return {'seen', seen}
end

-- {'slot', scope, field, start} -> {'slot', counted?, used, held}: one slot of a window.
function ops.slot(op)
  local name = op[3]
  local values = call('HMGET', op[2], name .. ':l', name .. ':u:' .. op[4], name .. ':h:' .. op[4])
  return {'slot', values[1] and true or false, tonumber(values[2]) or 0, tonumber(values[3]) or 0}
end

-- {'sweep', limit} -> {'swept', how many were reaped, leases, {id, {at_us, meta, use}, ...}}, the
-- last of those that are to be billed.
function ops.sweep(op)
  local num = reaped + (may_reap() and reap_expired(op[2]) or 0)
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
  -- Ten times a second is often enough; a clock that went back is believed.
  if now - called_us > SILENCE_US then back_us = now + RETURN_US end
  called_us, reaped = now, 0
  if may_reap() and (now >= reap_us or now < reap_us - REAP_EVERY_US) then
    reaped, reap_us = reap_expired(16), now + REAP_EVERY_US
  end
  local answers = {}
  for i = 1, #todo do
    local op = todo[i]
    -- One that goes wrong must not take with it those that were sent along.
    local ok, answer = pcall(ops[op[1]], op)
    answers[i] = ok and answer or {'error', tostring(answer)}
  end
  return cmsgpack.pack({string.sub(epoch, 1, colon - 1), built_us, now, answers})
end

redis.register_function(LIBRARY, run)
