-- What names the hold of a lock with this value. A foreign value can be of any length, so a long one is
-- named by its digest, which is one byte longer than any value that stands for itself.
local function mark_of(value)
  if type(value) ~= 'string' then return '' end
  if #value <= 40 then return value end
  return '#' .. redis.sha1hex(value)
end
