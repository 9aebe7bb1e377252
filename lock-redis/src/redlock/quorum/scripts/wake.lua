-- Wakes the first two clients in `waiters`, with 0 or 1 for who goes first and the name of the lock.
local function wake(waiters, lock)
  local channels = redis.call('ZRANGE', waiters, 0, 15)
  if not channels[1] then return end
  local now = redis.call('TIME')
  local woken = 0
  for _, channel in ipairs(channels) do
    local heard = redis.pcall('PUBLISH', channel, woken .. lock)
    if heard == 0 then
      redis.call('ZREM', waiters, channel)
    else
      -- To the end of the queue: a live waiter that does not get it registers again with its old
      -- ticket, and a stopped process is not always woken first.
      redis.call('ZADD', waiters, 'XX', now[1] * 1000000 + now[2], channel)
      woken = woken + 1
      if woken == 2 or type(heard) == 'table' then break end
    end
  end
end

