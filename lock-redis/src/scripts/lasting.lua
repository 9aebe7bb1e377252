-- For how many ms an entry lasts after a request of its owner for `ttl`: never for less than before. A
-- request may have been on its way for long, and a shorter ttl than the hold was given since then must
-- not end it sooner: whoever holds it relies on the longer one.
local function lasting(key, ttl)
  return math.max(tonumber(ttl), redis.call('PTTL', key))
end

