-- Rows of a run's log, from the one that holds the first event that is asked for.
--
-- KEYS[1]  prefix of the partition
-- ARGV[1]  run id
-- ARGV[2]  number of that event
-- ARGV[3]  events that are enough
-- ARGV[4]  bytes that are enough
-- Reply    for each row an array: first event, time, position, events
local log_key = prefix .. 'log:' .. ARGV[1]
local first, events, bytes = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local run = call('HMGET', prefix .. 'run:' .. ARGV[1], 'version', 'events_removed')
local replies = {}
if not run[1] or run[2] or first > tonumber(run[1]) then return replies end
local row, seq = row_of(log_key, first)
while row and events > 0 and bytes > 0 do
  local _, at, position, count = match(row, ROW)
  local text = call('HGET', log_key, format('events:%d', seq))
  replies[#replies + 1] = { seq, at, position, text }
  events = events - math.min(count, seq + count - first)
  bytes = bytes - #text
  seq = seq + count
  row = call('HGET', log_key, format('%d', seq))
end
return replies
