-- The queue, for the scripts that hand the lock over. A script answers what needs no queue before
-- this part.

-- Nobody waits any more. When the lock is to be left free is known for a while, since the next may come soon.
local function forget_queue()
  redis.call('PEXPIRE', waiters, 60000)
end

-- A waiter: client, end of its place in ms, ttl, grace, number of fences, whether the lock was handed
-- to it.
local function read_waiter(owner)
  local text = redis.call('HGET', waiters, owner)
  if not text then return nil end
  local client, till, ttl, grace, count, given =
    string.match(text, '^(%x+)|(%d+)|(%d+)|(%d+)|(%d+)|(%d)$')
  if not client then return nil end
  return {client = client, till = tonumber(till), ttl = ttl, grace = grace, count = tonumber(count),
    given = given == '1'}
end

local function write_waiter(owner, w, given)
  redis.call('HSET', waiters, owner,
    w.client .. '|' .. digits_of(w.till) .. '|' .. w.ttl .. '|' .. w.grace .. '|' .. w.count .. '|' .. (given and '1' or '0'))
end

local function drop_waiter(owner)
  redis.call('ZREM', queue, owner)
  redis.call('HDEL', waiters, owner)
end

-- Tells two of the next in the queue, of two other clients than the chosen one if there are so many,
-- when to check whether the chosen one has confirmed the lock. These two poll from then on.
local function watch(client, pause)
  local owners = redis.call('ZRANGE', queue, 1, 8)
  if #owners == 0 then return end
  local chosen, spare, clients = {}, nil, {[client] = true}
  for at, text in ipairs(redis.call('HMGET', waiters, unpack(owners))) do
    local other = text and string.match(text, '^(%x+)|')
    if other and not clients[other] then
      clients[other] = true
      chosen[#chosen + 1] = {owners[at], other}
      if #chosen == 2 then break end
    elseif other and not spare then
      spare = {owners[at], other}
    end
  end
  if #chosen == 0 then chosen[1] = spare end
  for _, next in ipairs(chosen) do
    redis.pcall('PUBLISH', 'distlock:' .. next[2], 'w' .. next[1] .. ':' .. digits_of(pause))
  end
end

-- Whether the lock is to be left free for a while, so that a client which polls with a plain SET NX
-- gets a turn: every second while one was seen in the last minute, else every 10 s. That is kept with the
-- waiters, as long as there are any: a lock may be held for hours.
local function pause_due(due, seen)
  if due and now < due then return false end
  local every = 10000000
  if seen and now - seen < 60000000 then every = 1000000 end
  redis.call('HSET', waiters, 'next', digits_of(now + every + 300000))
  if not due then return false end
  redis.call('HSET', waiters, 'till', digits_of(now + 300000))
  return true
end

-- Hands the free lock to the first live waiter in the queue. `me` is the caller if it may be chosen:
-- then it has the lock at once. Returns what happened, and after how many ms to check again (-1: no
-- check is needed).
--   'mine', fences | 'given', ms | 'pause', ms | 'more', 0 | 'free', -1 | 'deaf', -1
local function pass_on(me, may_pause)
  read_clock()
  local p = redis.call('HMGET', waiters, 'till', 'next', 'seen')
  local till = tonumber(p[1] or nil)
  if till and till > now and till - now <= 300000 then return 'pause', math.ceil((till - now) / 1000) end
  for _ = 1, 128 do
    local owner = redis.call('ZRANGE', queue, 0, 0)[1]
    if not owner then
      forget_queue()
      return 'free', -1
    end
    local w = read_waiter(owner)
    if not w or w.till * 1000 <= now then
      drop_waiter(owner)
    elseif owner == me then
      local fences, last = next_fences(w.count)
      redis.call('SET', lock, owner, 'PX', w.ttl)
      redis.call('SET', mark, last)
      write_hold(fences, owner, digits, w.client, '', w.ttl)
      drop_waiter(owner)
      return 'mine', fences
    elseif w.given then
      -- The lock was handed to it, and it did not confirm: its whole client is suspect. Otherwise one
      -- stopped process would cost one grace per waiter. The deletion first, for a full memory.
      drop_waiter(owner)
      redis.call('HSET', waiters, 's:' .. w.client, '1')
    elseif redis.call('HEXISTS', waiters, 's:' .. w.client) == 1 then
      drop_waiter(owner)
    elseif may_pause and pause_due(tonumber(p[2] or nil), tonumber(p[3] or nil)) then
      redis.pcall('PUBLISH', 'distlock:' .. w.client, 'w' .. owner .. ':300')
      return 'pause', 300
    else
      may_pause = false
      local fences, last = next_fences(w.count)
      redis.call('SET', lock, owner, 'PX', w.grace)
      redis.call('SET', mark, last)
      write_hold(fences, owner, digits, w.client, '', w.grace)
      write_waiter(owner, w, true)
      local told = redis.pcall('PUBLISH', 'distlock:' .. w.client, 'g' .. owner .. ':' .. lock)
      if type(told) == 'table' then
        -- An error is not "nobody hears it". The first ones in the queue poll.
        redis.call('DEL', lock, hold)
        write_waiter(owner, w, false)
        return 'deaf', -1
      elseif told == 0 then
        redis.call('DEL', lock, hold)
        redis.call('HSET', waiters, 's:' .. w.client, '1')
        drop_waiter(owner)
      else
        watch(w.client, tonumber(w.grace) + 30)
        return 'given', tonumber(w.grace) + 10
      end
    end
  end
  return 'more', 0
end
