-- Gives a lock up, and wakes the first two who wait for it.
-- KEYS: the node, the lock, the vote, the waiters.
-- ARGV: quorum, owner, try or '' for any of them, '1' to wake, payload, channel that waits no more or ''.
-- Answers 1 if there was a lock of this owner, else 0. Needs no admission: it takes only away.
local owner, try = ARGV[2], ARGV[3]
if ARGV[6] ~= '' then redis.call('ZREM', KEYS[4], ARGV[6]) end
local held = redis.pcall('GET', KEYS[2])
if not is_mine(held, owner) or (try ~= '' and held ~= owner .. '.' .. try) then return 0 end
redis.call('DEL', KEYS[2])
-- Kept for a moment: a lock that changes hands quickly counts on from here, and not from the mark,
-- which other names raise too.
redis.call('PEXPIRE', KEYS[3], 1000)
if ARGV[4] == '1' then
  local now = redis.call('TIME')
  local woken = 0
  for _, channel in ipairs(redis.call('ZRANGE', KEYS[4], 0, 15)) do
    local heard = redis.pcall('PUBLISH', channel, woken .. ARGV[5])
    if heard == 0 then
      redis.call('ZREM', KEYS[4], channel)
    else
      -- To the end of the line: whoever is alive and does not get it registers again with its old
      -- ticket, and a stopped process is not woken first for ever.
      redis.call('ZADD', KEYS[4], 'XX', now[1] * 1000000 + now[2], channel)
      woken = woken + 1
      if woken == 2 or type(heard) == 'table' then break end
    end
  end
end
return 1
