-- Begins all scripts that grant the lock. Keys of every such script:
-- the lock, the holder's record, the queue, the waiters, the pauses, the node-wide fence mark.
local lock, hold, queue, waiters, pauses, mark = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]

-- Microseconds. 2^53 of them last until the year 2255.
local function clock()
  local t = redis.call('TIME')
  return t[1] * 1000000 + t[2]
end

-- The next fences, as many as asked for: as a record has them, which is the first one and, if they are
-- several, a plus sign and how many; and the last one, which is still to be written. They are above
-- every fence of this node, whatever the name, and above its clock, which carries them over a loss of
-- the data. Read before the first write, so that a spoilt mark leaves no half-made lock. Lua prints
-- only 14 digits by itself.
local function next_fences(now, count)
  local last = tonumber(redis.call('GET', mark) or '0')
  if not last or last < 0 or last + count > 9007199254740991 then
    error('DISTLOCK the fence mark ' .. mark .. ' is not a number below 2^53: somebody has written to it; set it to the greatest fence that was ever used')
  end
  if last >= now then now = last + 1 end
  local fences = string.format('%.0f', now)
  if count > 1 then fences = fences .. '+' .. count end
  return fences, string.format('%.0f', now + count - 1)
end

-- The record of a holder: fences, owner, since when, client, label.
local function write_hold(fences, owner, since, client, label, ttl)
  redis.call('SET', hold, fences .. '|' .. owner .. '|' .. since .. '|' .. client .. '|' .. label, 'PX', ttl)
end

