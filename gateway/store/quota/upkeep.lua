-- What keeps the counters true, and the function itself.
--
-- It is a library of one function, so that it is compiled and set up once. Its first argument is a
-- MessagePack list of operations, done in order; the arguments after it are lists of scopes that
-- they name by number. The answer is MessagePack too:
-- {epoch, built_us, now_us, {answer, ...}}, or {false, 0, now_us, {}} where there is no epoch, which
-- means that what was counted here is lost. `gateway.store.quota_codec` is the other end.

local EPOCH = P .. 'epoch'
local REPAIRED_MS = 30000
-- What ended lately, of everybody: more than the ledger is ever behind while it answers.
local MAX_ENDED = 5000
local reaped, reap_us, REAP_EVERY_US = 0, 0, 100000
-- After a silence nobody could renew, or settle: nothing is reaped until everybody had the time to.
local called_us, back_us = 0, 0
local SILENCE_US, RETURN_US = 5000000, 3000000
-- Those who live are heard of every second. Who waits for them looks again after one.
local SEEN_US, AGAIN_US = 3000000, 1000000

-- Tell whether a lease that ran out is abandoned; a clock that went back is believed.
local function may_reap()
  return now >= back_us or now < back_us - RETURN_US
end

-- What is known of the lists that loading looks through, so that each of thousands of windows that are
-- loaded after a loss need not read all of them: by their scopes, the ends {id, at, tokens, nano}
-- read so far, up to the last one; and whose the requests are that are held.
local ends = {of = {}, num = 0, last = nil}
local held = {metas = {}, num = 0}
local MAX_KNOWN, LOOK_BACK = 2 * MAX_ENDED, 100

-- The ends that came behind the last one that was read, from a place on; all, where that is gone.
local function new_ends()
  local ended
  for _, from in ipairs({-LOOK_BACK, 0}) do
    ended = call('LRANGE', ENDED, from, -1)
    for i = #ended, 1, -1 do
      if ended[i] == ends.last then return ended, i + 1 end
    end
  end
  ends = {of = {}, num = 0}
  return ended, 1
end

local function read_ended()
  if ends.num > MAX_KNOWN then ends.last = nil end
  local ended, first = new_ends()
  for i = first, #ended do
    local one = cmsgpack.unpack(ended[i])
    for _, key in ipairs(owners_of(one[3])) do
      local list = ends.of[key] or {}
      list[#list + 1], ends.of[key] = {one[1], one[2], one[4], one[5]}, list
    end
  end
  ends.num, ends.last = ends.num + #ended - first + 1, ended[#ended]
end

-- What settled in a window and may not be in the ledger yet: {id = {slot = amount}}.
local function unseen_in(key, from)
  local unseen = {}
  local found = call('HGETALL', P .. 'w:' .. key .. ':' .. from[4])
  for i = 1, #found, 2 do
    local id, slot = string.match(found[i], '^([^:]*):(.*)$')
    unseen[id] = unseen[id] or {}
    unseen[id][slot] = tonumber(found[i + 1])
  end
  read_ended()
  for _, one in ipairs(ends.of[key] or {}) do
    local slot, amount = slot_of(from, one[2]), one[from[2] == NANO and 4 or 3]
    if slot and amount > 0 then
      unseen[one[1]] = unseen[one[1]] or {}
      unseen[one[1]][tostring(slot)] = amount
    end
  end
  return unseen
end

-- Who is billed for what is held; nil: nobody, as it is not held any more.
local function meta_of(id)
  local meta = held.metas[id]
  if not meta then
    local record = recall(id)
    meta = record and record[META]
    if held.num >= MAX_KNOWN then held = {metas = {}, num = 0} end
    held.metas[id], held.num = meta, held.num + 1
  end
  return meta
end

-- What is held of a scope: {id = record}.
local function running_of(key)
  local running = {}
  for _, leases in ipairs({LEASES, OVERDUE}) do
    for _, id in ipairs(call('ZRANGE', leases, 0, -1)) do
      local meta = meta_of(id)
      if meta and is_of(meta, key) then running[id] = recall(id) end
    end
  end
  return running
end

-- Which requests the ledger is to be asked for before a window can be loaded: what settled unseen,
-- and what is held still, whose bill may have been quicker than its end. Nothing that it was not
-- asked for may have a bill in the sums: what began since the first time cannot have one, but for
-- an end that is late just then, which is put right when its window is compared with the ledger.
local function to_ask_for(unseen, running, asked, since_us)
  local ids, has_new = {}, false
  for id in pairs(unseen) do
    ids[#ids + 1], has_new = id, has_new or not asked[id]
  end
  for id, record in pairs(running) do
    if not unseen[id] then
      ids[#ids + 1] = id
      has_new = has_new or not asked[id] and (since_us == 0 or record[AT] < since_us)
    end
  end
  return has_new and ids
end

-- Take from the sums what they have of requests that are held still, or that wait to be added:
-- {id, amount, ...}.
local function count_once(from, booked, used, unseen, running)
  for i = 1, #booked, 2 do
    local id, amount = booked[i], booked[i + 1]
    local slot = running[id] and slot_of(from, running[id][AT])
    if slot then used[tostring(slot)] = used[tostring(slot)] - amount end
    unseen[id] = nil
  end
end

-- Set apart what the sums have of requests that were vouched for: {id, slot, amount, ...}. What is
-- held, or ended here, counts by itself; the rest is kept for who comes back.
local function set_apart(apart, vouched, used, unseen)
  call('DEL', apart)
  for i = 1, #vouched, 3 do
    local id, slot, amount = vouched[i], tostring(vouched[i + 1]), vouched[i + 2]
    if recall(id) or unseen[id] then
      used[slot] = used[slot] - amount
    else
      call('HSET', apart, id, string.format('%.0f', amount))
      call('PEXPIRE', apart, REAPED_MS)
    end
  end
end

-- {'load', scope, entry, {slot, used, ...}, {id, ...}, {id, amount, ...}, {id, slot, amount, ...},
-- since_us}: learn from the ledger what was used. The first ids are those that it was asked for, the
-- others those of them that it has; the last are what it has of requests that were vouched for. What
-- runs is put into the window ->
--   {'done'} | {'known'} | {'building', wait_us}
--   {'waiting', {id, ...}, now_us}: read again, and say which of these the ledger has; `since_us` is
--   when that was said first
function ops.load(op)
  local key, from = op[2], op[3]
  local name, start, changed = from[4], from[6], from[10]
  if now < built_us then return {'building', built_us - now} end
  local fields = read_named(key)
  local last, loaded = fields[name .. ':l'], fields[name .. ':g']
  if last and last >= start and loaded and loaded >= changed then return {'known'} end
  local asked, used, unseen, running = {}, {}, unseen_in(key, from), running_of(key)
  for _, id in ipairs(op[5]) do asked[id] = true end
  local ids = to_ask_for(unseen, running, asked, op[8])
  if ids then return {'waiting', ids, now} end
  for i = 1, #op[4], 2 do used[tostring(op[4][i])] = op[4][i + 1] end
  count_once(from, op[6], used, unseen, running)
  set_apart(P .. 'v:' .. key .. ':' .. name, op[7], used, unseen)
  for _, slots in pairs(unseen) do
    for slot, amount in pairs(slots) do
      if used[slot] then used[slot] = used[slot] + amount end
    end
  end
  fields[name .. ':l'], fields[name .. ':g'] = max(last or 0, start), changed
  for slot, amount in pairs(used) do
    -- What was counted all the while is never behind the ledger.
    fields[name .. ':u:' .. slot] = max(fields[name .. ':u:' .. slot] or 0, amount)
  end
  write_named(key, fields)
  call('DEL', P .. 'w:' .. key .. ':' .. name)
  note_young(key, from)
  for id, record in pairs(running) do put_into(id, record, key, from) end
  return {'done'}
end

-- {'repair', scope, field, slot, seen, more}: correct what was used by `more`, if it is still as it
-- was seen; with a `seen` of -1 in any case. Once in a while only: the operation may come twice,
-- and several gateways may have seen the same.
function ops.repair(op)
  local key, field = op[2], op[3] .. ':u:' .. op[4]
  local fields = read_named(key)
  local used = fields[field] or 0
  if op[5] >= 0 and used ~= op[5] then return {'nothing'} end
  if not call('SET', P .. 'm:' .. key .. ':' .. field, 1, 'NX', 'PX', REPAIRED_MS) then
    return {'nothing'}
  end
  fields[field] = max(used + op[6], 0)
  write_named(key, fields)
  return {'done'}
end

-- {'look', scopes} -> {'seen', {left, whole_in_us, used, held, used in this slot, ...}}
function ops.look(op)
  local seen = {}
  for _, scope in ipairs(scopes_of(argv[op[2]])) do
    local values = read(scope)
    for i = 1, #scope.entries do
      local entry = scope.entries[i]
      local left, whole_us = room(entry, values)
      local used, held, used_now = 0, 0, 0
      if entry.kind == WINDOW then
        used, held = sums(entry, values)
        used_now = values[entry.used] or 0
      elseif entry.kind == RATE then
        used = entry.limit - left
      else
        held = values[entry.at] or 0
      end
      for _, value in ipairs({left, whole_us, used, held, used_now}) do
        seen[#seen + 1] = value
      end
    end
  end
  return {'seen', seen}
end

-- {'slot', scope, field, start} -> {'slot', counted?, used, held}: one slot of a window. It is counted
-- where it was loaded for its scope's limits as they are now: those that are gone count nothing.
function ops.slot(op)
  local key, name, slot = op[2], op[3], op[4]
  local fields = read_named(key)
  local used, held = fields[name .. ':u:' .. slot], fields[name .. ':h:' .. slot]
  local loaded = fields[name .. ':l'] and fields[name .. ':g'] or -1
  return {'slot', loaded >= newest_of(key), used or 0, held or 0}
end

-- {'sweep', limit} -> {'swept', how many were reaped, leases, {id, {at_us, meta, use}, ...},
-- {id, at_us, ...}}: those that are to be billed, and those that are overdue.
function ops.sweep(op)
  local num = reaped + (may_reap() and reap_expired(op[2]) or 0)
  local overdue = {}
  for _, id in ipairs(call('ZRANGE', OVERDUE, 0, op[2] - 1)) do
    local record = recall_overdue(id)
    if record then
      overdue[#overdue + 1], overdue[#overdue + 2] = id, record[AT]
    end
  end
  local found, orphans = call('HRANDFIELD', ORPHANS, op[2], 'WITHVALUES'), {}
  for i = 1, #found, 2 do
    orphans[i], orphans[i + 1] = found[i], cmsgpack.unpack(found[i + 1])
  end
  return {'swept', num, call('ZCARD', LEASES) + call('ZCARD', OVERDUE), orphans, overdue}
end

-- {'reap', {id, used or false, ...}}: end what is overdue still, at what the ledger has, or at what
-- was told where it has nothing -> {'reaped', how many}
function ops.reap(op)
  local num = 0
  for i = 1, #op[2], 2 do
    local record = recall_overdue(op[2][i])
    if record then
      reap(op[2][i], record, op[2][i + 1])
      call('ZREM', OVERDUE, op[2][i])
      num = num + 1
    end
  end
  return {'reaped', num}
end

-- {'billed', {id, ...}}: these orphans are in the ledger.
function ops.billed(op)
  if #op[2] > 0 then call('HDEL', ORPHANS, unpack(op[2])) end
  return {'done'}
end

-- What is kept of the counters' life: its name, and from when they are built. Where others are
-- waited for its name ends in until when at most, and in how many there are to be, so that earlier
-- releases can read it.
local life = kept(function(epoch)
  local colon = string.find(epoch, ':', 1, true)
  local name = sub(epoch, 1, colon - 1)
  local built_us, until_us, num = tonumber(sub(epoch, colon + 1)), string.match(name, '/(%d+)/(%d+)$')
  return {
    name = name, built_us = built_us,
    until_us = tonumber(until_us) or built_us, num = tonumber(num) or 0,
  }
end)

-- Until when hard limits let nothing through: a gateway that is not back yet may hold something.
local function built_at(of)
  if now < of.built_us or now >= of.until_us then return of.built_us end
  if call('ZCOUNT', P .. 'gateways', now - SEEN_US, '+inf') >= of.num then return of.built_us end
  return math.min(now + AGAIN_US, of.until_us)
end

local function run(_, args)
  call, floor, ceil, max = redis.call, math.floor, math.ceil, math.max
  sub, pack_values, unpack_values = string.sub, struct.pack, struct.unpack
  local time = call('TIME')
  argv, now_s = args, tonumber(time[1])
  now = (now_s - BASE_S) * 1000000 + tonumber(time[2])
  local todo, epoch = cmsgpack.unpack(args[1]), call('GET', EPOCH)
  -- {'found', epoch, build_us, wait_us, gateways}: begin to count; hard limits let nothing through
  -- for `build_us`, while others may still come back with what they hold, nor before so many have,
  -- for at most `wait_us`.
  if todo[1] and todo[1][1] == 'found' then
    if not epoch then
      local first = todo[1]
      local others = first[5] > 1 and string.format('/%.0f/%d', now + first[4], first[5]) or ''
      epoch = string.format('%s%s:%.0f', first[2], others, now + first[3])
      call('SET', EPOCH, epoch)
    end
    todo = {}
  end
  if not epoch then return cmsgpack.pack({false, 0, now, {}}) end
  living, built_us = life(epoch).name, built_at(life(epoch))
  -- Ten times a second is often enough; a clock that went back is believed.
  if now - called_us > SILENCE_US then back_us = now + RETURN_US end
  called_us, reaped = now, 0
  if may_reap() and (now >= reap_us or now < reap_us - REAP_EVERY_US) then
    reaped, reap_us = reap_expired(16), now + REAP_EVERY_US
    call('LTRIM', ENDED, -MAX_ENDED, -1)
  end
  local answers = {}
  for i = 1, #todo do
    local op = todo[i]
    -- One that goes wrong must not take with it those that were sent along.
    local ok, answer = pcall(ops[op[1]], op)
    answers[i] = ok and answer or {'error', tostring(answer)}
  end
  return cmsgpack.pack({living, built_us, now, answers})
end

redis.register_function(LIBRARY, run)
