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

-- Takes the next fences, as many as asked for, and answers them as a record has them: the first one and, if they are
-- several, a plus sign and how many. They are above every fence of this node, whatever the name, and above
-- its clock, which carries them over a loss of the data. Where it is the first write of a script, a mark that was spoilt
-- leaves no half-made lock.
local function next_fences(count)
  read_clock()
  local text, last = digits, digits
  if count > 1 then last = digits_of(now + count - 1) end
  local before = redis.call('GETSET', mark, last)
  local number = tonumber(before or '0')
  if not number or number < 0 or number + count > 9007199254740991 then
    redis.call('SET', mark, before)
    error(string.format(SPOILT, mark))
  end
  if number >= now then
    text = digits_of(number + 1)
    redis.call('SET', mark, digits_of(number + count))
  end
  if count == 1 then return text end
  return text .. '+' .. count
end

local function write_lock(letter, owner, fences, since, client, label, ttl)
  redis.call('SET', lock, 'distlock1' .. letter .. '|' .. owner .. '|' .. fences .. '|' .. since .. '|' .. client .. '|' .. label, 'PX', ttl)
end

