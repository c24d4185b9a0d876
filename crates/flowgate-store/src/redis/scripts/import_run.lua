-- Writes all of a run as another store had it, unless it is there.
--
-- KEYS[1]  prefix of the partition
-- ARGV[1]  run id
-- ARGV[2]  started, a time
-- ARGV[3]  ended, a time; empty for an open run
-- ARGV[4]  status
-- ARGV[5]  whether its events are removed (1, 0)
-- ARGV[6]  number of fields, jobs, rows of the log, log lines and indexes, with commas between;
--   then each field and its value; for each job: step, queue, due in microseconds, priority; for
--   each row: last event, number of events, time, events; the lines; the indexes
-- Reply    1 if it was not there
local ENTRY_ROWS_MAX = 500
local id = ARGV[1]
local run_key = prefix .. 'run:' .. id
if call('EXISTS', run_key) == 1 then return 0 end
local meta = call('HMGET', meta_key, 'position', 'clock_ms')
local position, now = tonumber(meta[1]), clock(meta[2])
local fields, jobs, rows, lines, names = match(ARGV[6], '^(%d+),(%d+),(%d+),(%d+),(%d+)$')

local at, set = 7, {}
for index = 0, 2 * fields - 1 do set[#set + 1] = ARGV[at + index] end
in_parts('HSET', run_key, set)
at = at + 2 * fields
for _ = 1, tonumber(jobs) do
  local queue, order = ARGV[at + 1], ARGV[at + 2]
  if tonumber(order) < (now + 1) * 1000 then order = order_of(order, ARGV[at + 3]) end
  call('ZADD', prefix .. 'queue:' .. queue, order, id .. ':' .. ARGV[at])
  call('SADD', prefix .. 'queues', queue)
  at = at + 4
end
-- One row of the feed points to a bounded number of rows of the log.
rows = tonumber(rows)
while rows > 0 do
  local count_of_entry, entry, pointers = math.min(rows, ENTRY_ROWS_MAX), position + 1, {}
  for _ = 1, count_of_entry do
    local seq, count = ARGV[at], ARGV[at + 1]
    local offset = format('%d', position + 1 - entry)
    -- No commit has this id, so none is taken for one that was applied.
    call('HSET', run_key, seq, ';' .. count .. ';' .. offset .. ';' .. ARGV[at + 3], 'at:' .. seq,
      format('%s;%d;%d;0', ARGV[at + 2], entry, count_of_entry))
    pointers[#pointers + 1] = id .. ':' .. seq .. ':' .. count .. ':' .. offset
    position = position + count
    at = at + 4
  end
  call('XADD', prefix .. 'feed', format('%d-0', entry), 'rows', table.concat(pointers, ','))
  rows = rows - count_of_entry
end
local kept = {}
for index = 0, lines - 1 do kept[#kept + 1] = ARGV[at + index] end
in_parts('RPUSH', prefix .. 'lines:' .. id, kept)
at = at + lines
for index = 0, names - 1 do call('ZADD', prefix .. ARGV[at + index], ARGV[2], id) end
if ARGV[3] == '' then
  call('ZADD', prefix .. 'open', ARGV[2], id)
  if ARGV[4] == 'held' then
    local flow = match(call('HGET', run_key, 'indexes'), '"flow:([^"]*)"')
    call('ZADD', prefix .. 'held:' .. flow, ARGV[2], id)
  end
else
  call('ZADD', prefix .. (ARGV[5] == '1' and 'swept' or 'ended'), ARGV[3], id)
  if ARGV[4] ~= 'completed' then call('ZADD', prefix .. ARGV[4], ARGV[2], id) end
end
call('HSET', meta_key, 'position', position)
return 1
