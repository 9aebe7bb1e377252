-- The queue, for the scripts that hand the lock over. A script answers what needs no queue before
-- this part. In the queue stands `owner|client`. In the waiters each owner has its client, the end of its place in ms, its
-- grace and the number of its fences; and `s:` and a client is there of one that has missed its turn, or is just given it.

-- Nobody waits any more. When the lock is to be left free is known for a while, since the next may come soon.
local function forget_queue()
  redis.call('PEXPIRE', waiters, 60000)
end

-- Puts a place back that was just taken from the queue.
local function return_place(place, ticket)
  redis.call('ZADD', queue, ticket, place)
  redis.call('PEXPIRE', queue, math.max(redis.call('PTTL', waiters), 1000))
end

-- A lock that was handed over, with this value, is given away by somebody who can speak for the waiter: its client is not
-- suspect.
local function leave_turn(value)
  local _, owner, _, _, client = read_lock(value)
  redis.call('HDEL', waiters, owner, 's:' .. client)
end

-- Tells two of the next in the queue, of two other clients than the chosen one if there are so many,
-- when to check whether the chosen one has confirmed the lock. These two poll from then on.
local function watch(client, pause)
  local chosen, spare, clients = {}, nil, {[client] = true}
  for _, next in ipairs(redis.call('ZRANGE', queue, 0, 7)) do
    local other = string.sub(next, 34)
    if not clients[other] then
      clients[other] = true
      chosen[#chosen + 1] = next
      if #chosen == 2 then break end
    else
      spare = spare or next
    end
  end
  if #chosen == 0 then chosen[1] = spare end
  for _, next in ipairs(chosen) do
    redis.pcall('PUBLISH', 'distlock:' .. string.sub(next, 34), 'w' .. string.sub(next, 1, 32) .. ':' .. digits_of(pause))
  end
end

-- Whether the lock is to be left free for a while, so that a client which polls with a plain SET NX
-- gets a turn: every second while one was seen in the last minute, else every 10 s. That is kept with the
-- waiters, as long as there are any: a lock may be held for hours. What lies further ahead than that was written before
-- the clock was set back.
local function pause_due(due, seen)
  local every, length = 10000000, 300000
  if due and now < due and due <= now + every + length then return false end
  if seen and math.abs(now - seen) < 60000000 then every = 1000000 end
  redis.call('HSET', waiters, 'next', digits_of(now + every + length))
  if not due then return false end
  redis.call('HSET', waiters, 'till', digits_of(now + length))
  return true
end

-- Hands the lock, which nobody is to have any more, to the first live waiter in the queue. `me` is the place of the
-- caller if it may be chosen. The first write takes one from the queue, which a full memory does not refuse.
-- Returns what happened, and after how many ms to check again (-1: no check is needed). In all cases but `given` the
-- lock's key is left as it is.
--   'mine', -1 | 'given', ms | 'pause', ms | 'more', 0 | 'free', -1 | 'deaf', -1
local function pass_on(me, may_pause)
  for _ = 1, 128 do
    local place, ticket = unpack(redis.call('ZPOPMIN', queue))
    if not place then
      forget_queue()
      return 'free', -1
    end
    read_clock()
    local owner, client = string.sub(place, 1, 32), string.sub(place, 34)
    local doubt = 's:' .. client
    local entry, is_doubted, free_till, due, seen, watched =
      unpack(redis.call('HMGET', waiters, owner, doubt, 'till', 'next', 'seen', 'watched'))
    local free = tonumber(free_till or '0') - now
    if free > 0 and free <= 300000 then
      return_place(place, ticket)
      return 'pause', math.ceil(free / 1000)
    end
    if place == me then
      redis.call('HDEL', waiters, owner)
      return 'mine', -1
    end
    local other, till, grace, count = string.match(entry or '', '^(%x+)|(%d+)|(%d+)|(%d+)$')
    if other and other ~= client then
      -- This owner stands in the queue by another client now.
    elseif not till or tonumber(till) * 1000 <= now or is_doubted then
      -- Its place has lapsed. Or a lock was handed to its client, which did not confirm: all of it is suspect.
      -- Otherwise one stopped process would cost one grace per waiter.
      redis.call('HDEL', waiters, owner)
    elseif may_pause and pause_due(tonumber(due or nil), tonumber(seen or nil)) then
      return_place(place, ticket)
      redis.pcall('PUBLISH', 'distlock:' .. client, 'w' .. owner .. ':300')
      return 'pause', 300
    else
      may_pause = false
      -- Nobody can act on it before this script ends.
      local told = redis.pcall('PUBLISH', 'distlock:' .. client, 'g' .. owner .. ':' .. lock)
      if type(told) == 'table' then
        -- An error is not "nobody hears it". The first ones in the queue poll.
        return_place(place, ticket)
        return 'deaf', -1
      elseif told == 0 then
        redis.call('HDEL', waiters, owner)
        redis.call('HSET', waiters, doubt, '1')
      else
        write_lock('h', owner, next_fences(tonumber(count)), digits, client, '', grace)
        -- Where the lock changes hands quickly, those which were told lately still look.
        local since = now - tonumber(watched or '0')
        if since >= 0 and since < 500000 then
          redis.call('HSET', waiters, doubt, '1')
        else
          redis.call('HSET', waiters, doubt, '1', 'watched', digits)
          watch(client, tonumber(grace) + 30)
        end
        return 'given', tonumber(grace) + 10
      end
    end
  end
  return 'more', 0
end
