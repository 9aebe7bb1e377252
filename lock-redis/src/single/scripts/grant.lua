-- For all scripts that grant the lock. A function costs time where it is made, too, so what a script
-- answers without one comes before it.

-- Lua prints only 14 digits by itself.
local function digits_of(number)
  return string.format('%.0f', number)
end

-- The server's time, once this script needs it: microseconds, of which 2^53 last until the year 2255,
-- and their digits, which cost less than those of a number.
local now, digits
local function read_clock()
  if now then return end
  local t = redis.call('TIME')
  now, digits = t[1] * 1000000 + t[2], t[1] .. string.sub('00000' .. t[2], -6)
end

-- The next fences, as many as asked for: as a record has them, which is the first one and, if they are
-- several, a plus sign and how many; and the last one, which is still to be written. They are above
-- every fence of this node, whatever the name, and above its clock, which carries them over a loss of
-- the data. Read before the first write, so that a spoilt mark leaves no half-made lock.
local function next_fences(count)
  local last = tonumber(redis.call('GET', mark) or '0')
  if not last or last < 0 or last + count > 9007199254740991 then
    error('DISTLOCK the fence mark ' .. mark .. ' is not a number below 2^53: somebody has written to it; set it to the greatest fence that was ever used')
  end
  read_clock()
  local first, text = now, digits
  if last >= first then first, text = last + 1, digits_of(last + 1) end
  if count == 1 then return text, text end
  return text .. '+' .. count, digits_of(first + count - 1)
end

-- The record of a holder: fences, owner, since when, client, label.
local function write_hold(fences, owner, since, client, label, ttl)
  redis.call('SET', hold, fences .. '|' .. owner .. '|' .. since .. '|' .. client .. '|' .. label, 'PX', ttl)
end

