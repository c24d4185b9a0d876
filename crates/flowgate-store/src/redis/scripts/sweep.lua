-- Removes events and records of runs that ended long ago, a bounded share of them.
--
-- KEYS[1]  prefix of the partition
-- ARGV[1]  milliseconds for which events are kept
-- ARGV[2]  milliseconds for which records are kept
-- ARGV[3]  runs at most
-- Reply    runs whose events were removed, runs whose records were removed, and 1 if a run's log
--   is so long that there is more of it
local ROWS_MAX = 5000
local now = clock(call('HGET', meta_key, 'clock_ms'))
local left, rows_left = tonumber(ARGV[3]), ROWS_MAX
local logs, records = 0, 0

-- Removes a log, and the rows of the feed that point to nothing any more; false if there is more
-- of it than one call removes.
local function remove_log(id)
  local log_key, run_key = prefix .. 'log:' .. id, prefix .. 'run:' .. id
  local seq = tonumber(call('HGET', run_key, 'events_removed') or 1)
  local row = call('HGET', log_key, format('%d', seq))
  while row do
    if rows_left == 0 then
      call('HSET', run_key, 'events_removed', seq)
      return false
    end
    rows_left = rows_left - 1
    local _, _, _, count, entry, rows = match(row, ROW)
    if call('HINCRBY', prefix .. 'feed:dead', entry, 1) == tonumber(rows) then
      call('XDEL', prefix .. 'feed', entry .. '-0')
      call('HDEL', prefix .. 'feed:dead', entry)
    end
    seq = seq + count
    row = call('HGET', log_key, format('%d', seq))
  end
  call('HSET', run_key, 'events_removed', seq)
  call('UNLINK', log_key, prefix .. 'lines:' .. id)
  return true
end

for _, id in ipairs(call('ZRANGEBYSCORE', prefix .. 'ended', '-inf', now - ARGV[1], 'LIMIT', 0, left)) do
  if not remove_log(id) then return { logs, records, 1 } end
  local ended_at = call('ZSCORE', prefix .. 'ended', id)
  call('ZREM', prefix .. 'ended', id)
  call('ZADD', prefix .. 'swept', ended_at, id)
  logs, left = logs + 1, left - 1
end
if left > 0 then
  local over = call('ZRANGEBYSCORE', prefix .. 'swept', '-inf', now - ARGV[2], 'LIMIT', 0, left)
  for _, id in ipairs(over) do
    local run_key = prefix .. 'run:' .. id
    local found = call('HMGET', run_key, 'indexes', 'status')
    for _, name in ipairs(cjson.decode(found[1] or '[]')) do call('ZREM', prefix .. name, id) end
    if found[2] and found[2] ~= 'completed' then call('ZREM', prefix .. found[2], id) end
    call('DEL', run_key)
    call('ZREM', prefix .. 'swept', id)
    records = records + 1
  end
end
return { logs, records, 0 }
