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
  local run_key = prefix .. 'run:' .. id
  local run = call('HMGET', run_key, 'version', 'events_removed')
  local version, seq = tonumber(run[1] or 0), tonumber(run[2] or 1)
  if not run[2] and run[1] then
    call('HSET', run_key, 'updated_at', updated_at(run_key, run[1]))
  end
  local last, at = row_of(run_key, seq, version)
  while last do
    if rows_left == 0 then
      call('HSET', run_key, 'events_removed', seq)
      return false
    end
    rows_left = rows_left - 1
    local _, entry, rows = match(at, AT)
    if call('HINCRBY', prefix .. 'feed:dead', entry, 1) == tonumber(rows) then
      call('XDEL', prefix .. 'feed', entry .. '-0')
      call('HDEL', prefix .. 'feed:dead', entry)
    end
    call('HDEL', run_key, format('%d', last), format('at:%d', last))
    seq = last + 1
    last, at = row_of(run_key, seq, version)
  end
  call('HSET', run_key, 'events_removed', seq)
  call('UNLINK', prefix .. 'lines:' .. id)
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
    call('UNLINK', run_key)
    call('ZREM', prefix .. 'swept', id)
    records = records + 1
  end
end
return { logs, records, 0 }
