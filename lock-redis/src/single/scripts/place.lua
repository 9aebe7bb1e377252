-- For what keeps a place in the queue.

-- A client that speaks is not suspect, but for the turn that it is just given by the holder with this letter and client.
-- Answers 1 if it was, and has lost places.
local function speak(waiters, client, letter, chosen)
  if letter == 'h' and chosen == client then return 0 end
  return redis.call('HDEL', waiters, 's:' .. client)
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
