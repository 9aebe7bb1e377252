-- Goes on where acquire_free.lua has found a queue, a holder or the mark of an owner that has gone.

-- The key can be of another type, which GET refuses: a foreign lock then.
local holder = value_of(lock)
local score = wait and redis.call('ZSCORE', queue, me)

-- A client that speaks is not suspect. 1: this one was, and has lost places. When the memory is full a script
-- goes on after a write that needs none, such as this one: that is for those which have an entry. Of a
-- newcomer, the first write is one that is refused then.
local missed = 0
local function speak()
  missed = redis.call('HDEL', waiters, 's:' .. client)
end
if holder == me or score then speak() end

if holder == me then
  local fences, owner, since = string.match(redis.call('GET', hold) or '', '^([%d+]+)|(%x+)|(%d+)|')
  if owner ~= me then
    local last
    fences, last = next_fences(count)
    redis.call('SET', mark, last)
    since = digits
  end
  local left = lasting(lock, ttl)
  redis.call('PEXPIRE', lock, left)
  write_hold(fences, me, since, client, label, left)
  drop_waiter(me)
  return {1, fences, missed, echo}
end

-- This try was under way when its owner gave everything up.
if redis.call('EXISTS', gone) == 1 then return {2} end

read_clock()

if wait then
  if score then
    ticket = digits_of(tonumber(score))
  else
    -- A waiter that has lost its place comes back with its old ticket.
    local has_lost_place = ticket ~= '0'
    if not has_lost_place then
      local number = now
      local last = redis.call('ZREVRANGE', queue, 0, 0, 'WITHSCORES')
      if last[2] and tonumber(last[2]) >= number then number = tonumber(last[2]) + 1 end
      ticket = digits_of(number)
    end
    redis.call('ZADD', queue, ticket, me)
    speak()
    -- The others of a waiter that has lost its place may have lost theirs, too.
    if has_lost_place and looks then missed = 1 end
  end
  write_waiter(me, {client = client, till = math.floor(now / 1000) + tonumber(ttl), ttl = ttl, grace = grace, count = count}, false)
  for _, name in ipairs({queue, waiters}) do
    if redis.call('PTTL', name) < tonumber(ttl) then redis.call('PEXPIRE', name, tonumber(ttl) + 1000) end
  end
else
  ticket = '0'
end

local again = -1
-- What the keys say of the holder: mark, record, µs on the server's clock. Nothing if this try has
-- found the lock free.
local shown = {}
if holder == false then
  local state, value = pass_on(wait and me or nil, may_pause)
  if state == 'mine' then
    write_hold(value, me, digits, client, label, ttl)
    return {1, value, missed, echo}
  elseif state == 'free' then
    local fences, last = next_fences(count)
    redis.call('SET', lock, me, 'PX', ttl)
    redis.call('SET', mark, last)
    write_hold(fences, me, digits, client, label, ttl)
    return {1, fences, missed, echo}
  end
  again = value
else
  local value, record = mark_of(holder), redis.call('GET', hold) or ''
  shown = {value, record, digits}
  -- A plain client has it.
  if wait and string.match(record, '^[%d+]+|(%x+)|') ~= holder then
    local due = tonumber(redis.call('HGET', waiters, 'next') or nil)
    redis.call('HSET', waiters, 'seen', digits)
    if not due or due > now + 1000000 then
      redis.call('HSET', waiters, 'next', digits_of(now + 1000000))
    end
  end
end
local left = redis.call('PTTL', lock)
if left < 0 and again >= 0 then left = again end
if not wait then return {0, ticket, 0, left, shown, missed, again, 0} end
local rank = redis.call('ZRANK', queue, me) or 0

if not looks then return {0, ticket, rank, left, shown, missed, again, -1} end

-- How many other clients have waiters before this one, as far as it matters; -1 if they are too many, or
-- a place of this client is there that its claim has left behind.
local function clients_ahead()
  local seen, count, from, step = {}, 0, 0, 8
  while from < rank do
    if from >= 2048 then return -1 end
    local owners = redis.call('ZRANGE', queue, from, math.min(from + step, rank) - 1)
    for _, text in ipairs(redis.call('HMGET', waiters, unpack(owners))) do
      local other = text and string.match(text, '^(%x+)|')
      if other == client then return -1 end
      if other and not seen[other] then
        seen[other] = true
        count = count + 1
        if count > 3 then return -1 end
      end
    end
    from, step = from + step, math.min(step * 4, 512)
  end
  return count
end
return {0, ticket, rank, left, shown, missed, again, clients_ahead()}
