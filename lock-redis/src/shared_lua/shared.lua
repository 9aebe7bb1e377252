-- What names the hold of a lock with this value. A foreign value can be of any length, so a long one is
-- named by its digest, which is one byte longer than any value that stands for itself.
local function mark_of(value)
  if type(value) ~= 'string' then return '' end
  if #value <= 40 then return value end
  return '#' .. redis.sha1hex(value)
end

-- For how many ms an entry lasts after a request of its owner for `ttl`: never for less than before. A
-- request may have been on its way for long, and a shorter ttl than the hold was given since then must
-- not end it sooner: whoever holds it relies on the longer one.
local function lasting(key, ttl)
  return math.max(tonumber(ttl), redis.call('PTTL', key))
end

