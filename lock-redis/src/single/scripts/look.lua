-- Who has locks at this moment. KEYS: the fence mark, a key that is never there, then the locks.
-- Answers for each {1, fences or '', label or ''} | {0, floor}.

-- It deletes nothing, but is refused where a grant would be: a server that is a replica by now, or has lost its replicas,
-- does not know of the grants of the one that has taken its place.
redis.call('DEL', KEYS[2])

-- What no earlier fence of this node exceeds, and each later one does: the greatest so far, whatever the name. If it is
-- lost, or there was none, the next fence is the clock at its grant, which may come at this very microsecond.
local function floor_of(mark)
  local last = redis.call('GET', mark)
  if not last then
    local t = redis.call('TIME')
    return string.format('%.0f', t[1] * 1000000 + t[2] - 1)
  end
  local number = tonumber(last)
  if not number or number < 0 or number >= 9007199254740991 then error(string.format(SPOILT, mark)) end
  return string.format('%.0f', number)
end

local floor
local out, values = {}, values_of(KEYS, 3)
for k = 3, #KEYS do
  local value = values[k]
  if value then
    local _, _, fences, _, _, label = read_lock(value)
    out[#out + 1] = {1, fences or '', label or ''}
  else
    floor = floor or floor_of(KEYS[1])
    out[#out + 1] = {0, floor}
  end
end
return out
