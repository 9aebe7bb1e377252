-- Letter, owner, fences, since when, client and label of a lock of ours; nil for any other value.
local function read_lock(value)
  if type(value) ~= 'string' then return nil end
  return string.match(value, '^distlock1([nqh])|(%x+)|([%d+]+)|(%d+)|(%x+)|(.*)$')
end

-- Queue and waiters last for as long as a place that is taken or renewed for `ttl`. They last alike, but for a queue that is
-- made anew beside what is left of the waiters of an earlier one.
local function keep_queue(queue, waiters, ttl, is_there)
  local left = redis.call('PTTL', waiters)
  if left < tonumber(ttl) then
    left = tonumber(ttl) + 1000
    redis.call('PEXPIRE', waiters, left)
    redis.call('PEXPIRE', queue, left)
  elseif not is_there then
    redis.call('PEXPIRE', queue, left)
  end
end

-- What names a hold, and its record: a word for another version of this library, and nothing for a plain client. With one of ours
-- also its letter and client.
local function shown_of(value)
  local letter, owner, _, _, client = read_lock(value)
  if letter then return owner, string.sub(value, 12), letter, client end
  local is_strange = type(value) == 'string' and string.find(value, '^distlock%d')
  return mark_of(value), is_strange and 'unknown' or ''
end
