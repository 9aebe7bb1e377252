-- KEYS: those of keys.lua, then the mark of an owner that has gone.
-- ARGV: who (see record.lua), or '' to look only whether a lock that was handed over is free again; ms for which the mark
-- of a gone owner is kept or 0; may pause.
-- Answers {freed, look again in ms or -1}.
local who, keep, may_pause = ARGV[1], ARGV[2], ARGV[3] == '1'
local value = value_of(lock)
local letter = who ~= '' and letter_of(value, who)
if letter == 'n' and keep == '0' then
  redis.call('DEL', lock)
  return {1, -1}
end

-- Deletions come first: when the memory is full a script may go on writing only after a write that frees some.
local freed = letter and 1 or 0
-- A lock that was taken over has no place.
local record = not letter and #who == 33 and redis.call('HGET', waiters, string.sub(who, 1, 32))
if record then
  redis.call('HDEL', waiters, string.sub(who, 1, 32))
  freed = redis.call('ZREM', queue, who .. string.match(record, '^%x+'))
  -- As queue.lua forgets it, which comes later.
  if redis.call('EXISTS', queue) == 0 then redis.call('PEXPIRE', waiters, 60000) end
end
-- A try of this owner that had no answer may still be on its way: it must not take the lock then.
if keep ~= '0' then
  if letter then redis.call('DEL', lock) end
  redis.call('SET', KEYS[5], '1', 'PX', keep)
end
-- The one that leaves may be the one that was to look.
if letter == 'n' or (not letter and (value or (freed == 0 and who ~= ''))) then return {freed, -1} end
