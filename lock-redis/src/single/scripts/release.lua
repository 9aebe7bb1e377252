-- KEYS: those of keys.lua, then the mark of an owner that has gone.
-- ARGV: who (see value.lua), or '' to look only whether a lock that was handed over is free again; ms for which the mark of a gone owner is kept or 0, may pause.
-- Answers {freed, look again in ms or -1}.
-- Deletions come first: when the memory is full a script may go on writing only after a write that
-- frees some.
local who, keep, may_pause = ARGV[1], ARGV[2], ARGV[3] == '1'
local me = string.sub(who, -32)
local freed, held = 0, false
if who ~= '' and is_held_by(who, lock, hold) then
  redis.call('DEL', lock, hold)
  freed, held = 1, true
end
local queued = redis.call('EXISTS', queue) == 1
-- A lock that was taken over has no place.
if queued and who == me then
  if redis.call('ZREM', queue, me) == 1 then
    redis.call('HDEL', waiters, me)
    freed = 1
  end
end
-- A try of this owner that had no answer may still be on its way: it must not take the lock then.
if keep ~= '0' then redis.call('SET', KEYS[6], '1', 'PX', keep) end
if not queued then return {freed, -1} end
if not held then
  if redis.call('EXISTS', queue) == 0 then
    -- As queue.lua forgets it, which comes later.
    redis.call('PEXPIRE', waiters, 60000)
    return {freed, -1}
  end
  -- The one that leaves may be the one that was to look.
  if (freed == 0 and who ~= '') or redis.call('EXISTS', lock) == 1 then return {freed, -1} end
end
