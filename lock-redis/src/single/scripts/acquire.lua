-- Goes on where acquire_free.lua has found a queue, a holder or the mark of an owner that has gone.

local holder, has_gone = unpack(redis.call('MGET', lock, gone))
-- The key can be of another type, which GET refuses: a foreign lock then.
if not holder then holder = value_of(lock) end
local letter = letter_of(holder, me .. '|')
if letter then
  local fences, since = string.match(holder, '^|([%d+]+)|(%d+)|', 12 + #me)
  local missed = 0
  if letter == 'h' then
    -- A deletion first, for a full memory.
    redis.call('HDEL', waiters, me, 's:' .. client)
    write_lock('q', me, fences, since, client, label, ttl)
  else
    missed = speak(waiters, client)
    redis.call('PEXPIRE', lock, lasting(lock, ttl))
  end
  return {1, fences, missed, echo}
end

-- This try was under way when its owner gave everything up.
if has_gone then return {2} end

-- What the keys say of the holder: mark, record, letter, client. Nothing if this try has found the lock free.
local value, record, handed, chosen
if holder then value, record, handed, chosen = shown_of(holder) end
if record == 'unknown' then
  error('DISTLOCK the lock ' .. lock .. ' is held by another version of distlock: let all its users have the same one')
end

read_clock()

local place = me .. '|' .. client
local missed = 0
if wait then
  -- When the memory is full a script goes on after a write that needs none, such as that of `speak`: that is for those
  -- which have an entry. Of a newcomer, the first write is one that is refused then.
  local score = redis.call('ZSCORE', queue, place)
  if score then
    missed = speak(waiters, client, handed, chosen)
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
    redis.call('ZADD', queue, ticket, place)
    missed = speak(waiters, client, handed, chosen)
    -- The others of a waiter that has lost its place may have lost theirs, too.
    if has_lost_place and looks then missed = 1 end
  end
  -- Whoever releases the lock is to look into the queue.
  if handed == 'n' then redis.call('SETRANGE', lock, 9, 'q') end
  local till = math.floor(now / 1000) + tonumber(ttl)
  redis.call('HSET', waiters, me, client .. '|' .. digits_of(till) .. '|' .. grace .. '|' .. count)
  keep_queue(queue, waiters, ttl, score)
else
  ticket = '0'
end

local again = -1
-- The mark and the record of the holder, and µs on the server's clock.
local shown = {}
if holder == false then
  local state, pause = pass_on(wait and place or nil, may_pause)
  if state == 'mine' or state == 'free' then
    local fences = next_fences(count)
    write_lock(state == 'mine' and 'q' or 'n', me, fences, digits, client, label, ttl)
    return {1, fences, missed, echo}
  end
  again = pause
else
  shown = {value, record, digits}
  -- A plain client has it.
  if wait and not handed then
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
local rank = redis.call('ZRANK', queue, place) or 0

if not looks then return {0, ticket, rank, left, shown, missed, again, -1} end

-- How many other clients have waiters before this one, as far as it matters; -1 if they are too many, or
-- a place of this client is there that its claim has left behind.
local function clients_ahead()
  local seen, count, from, step = {}, 0, 0, 8
  while from < rank do
    if from >= 2048 then return -1 end
    for _, other in ipairs(redis.call('ZRANGE', queue, from, math.min(from + step, rank) - 1)) do
      other = string.sub(other, 34)
      if other == client then return -1 end
      if not seen[other] then
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
