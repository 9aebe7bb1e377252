-- The process that runs this, and since which promotion it is a master: a server that was a replica in between has
-- another's data.
local function process()
  local run_id = string.match(redis.call('INFO', 'server'), 'run_id:(%x+)') or ''
  local promotion = string.match(redis.call('INFO', 'replication'), 'master_replid:(%x+)') or ''
  return string.sub(run_id, 1, 20) .. string.sub(promotion, 1, 20)
end
