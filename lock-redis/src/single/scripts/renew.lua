-- Renews or looks at many entries. ARGV: for each: kind, who (see value.lua), ttl in ms,
-- client. L, l: a lock; KEYS: the lock, the holder's record. P, p: a place; KEYS: the lock, the queue, the
-- waiters. Small letters write nothing.
-- Answers for each: -1 gone, else the ms left: of a lock as such, of a place plus 2^40, of a lock
-- that was handed over and not yet taken up plus 2^41, of a place whose client was suspect until now plus
-- 2^42. -2: the queue is none, but a key of another type.
local PLACE, HANDED, DOUBTED = 1099511627776, 2199023255552, 4398046511104
local out, k = {}, 1
local now
-- An answer and false; or true alone if the key is of another type, which concerns this entry and no
-- other. Any other refusal concerns all of them and ends the script.
local function ask(command, key, field)
  local answer = redis.pcall(command, key, field)
  if type(answer) == 'table' and answer.err then
    if string.find(answer.err, 'WRONGTYPE', 1, true) then return nil, true end
    return redis.call(command, key, field), false
  end
  return answer, false
end
for a = 1, #ARGV, 4 do
  local kind, who, ttl, client = ARGV[a], ARGV[a + 1], ARGV[a + 2], ARGV[a + 3]
  local answer = -1
  local lock = KEYS[k]
  if kind == 'L' or kind == 'l' then
    local mine = is_held_by(who, lock, KEYS[k + 1])
    if mine and kind == 'L' then
      local left = lasting(lock, ttl)
      redis.call('PEXPIRE', lock, left)
      redis.call('PEXPIRE', KEYS[k + 1], left)
      if #who > 32 then
        -- The client that has taken the lock over is now the one to tell of its loss.
        local since, label = string.match(redis.call('GET', KEYS[k + 1]), '^[%d+]+|%x+|(%d+)|%x+|(.*)$')
        if since then
          redis.call('SET', KEYS[k + 1], who .. '|' .. since .. '|' .. client .. '|' .. label, 'PX', left)
        end
      end
      answer = tonumber(ttl)
    elseif mine then
      answer = math.max(redis.call('PTTL', lock), 0)
    end
    k = k + 2
  else
    local me, queue, waiters = who, KEYS[k + 1], KEYS[k + 2]
    if value_of(lock) == me then
      answer = HANDED + math.max(redis.call('PTTL', lock), 0)
    else
      local record, no_waiters = ask('HGET', waiters, me)
      local ticket, no_queue = ask('ZSCORE', queue, me)
      local old, till, rest = string.match(record or '', '^(%x+)|(%d+)|(%d+|%d+|%d+)|%d$')
      if no_waiters or no_queue then
        answer = -2
      elseif old and ticket then
        if not now then
          local t = redis.call('TIME')
          now = t[1] * 1000 + math.floor(t[2] / 1000)
        end
        if kind == 'P' then
          local doubted = redis.call('HDEL', waiters, 's:' .. client) == 1
          redis.call('HSET', waiters, me, client .. '|' .. string.format('%.0f', now + ttl) .. '|' .. rest .. '|0')
          for _, name in ipairs({queue, waiters}) do
            if redis.call('PTTL', name) < tonumber(ttl) then redis.call('PEXPIRE', name, tonumber(ttl) + 1000) end
          end
          answer = (doubted and DOUBTED or PLACE) + tonumber(ttl)
        elseif tonumber(till) > now then
          answer = PLACE + tonumber(till) - now
        end
      end
    end
    k = k + 3
  end
  out[#out + 1] = answer
end
return out
