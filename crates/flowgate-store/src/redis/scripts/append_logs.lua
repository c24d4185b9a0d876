-- Keeps log lines of runs that are there and whose events are.
--
-- KEYS[1]  prefix of the partition
-- ARGV[1]  lines to keep for a run at most
-- ARGV[2]  number of runs; then for each: run id, number of lines, lines
-- Reply    nothing
local now = format('%d', clock(call('HGET', meta_key, 'clock_ms')))
local limit, at = tonumber(ARGV[1]), 3
for _ = 1, tonumber(ARGV[2]) do
  local id, count = ARGV[at], tonumber(ARGV[at + 1])
  local run_key = prefix .. 'run:' .. id
  local found = call('HMGET', run_key, 'version', 'events_removed', 'log_lines')
  if found[1] and not found[2] then
    local before, kept = tonumber(found[3] or 0), {}
    for line = 1, math.min(count, limit - before) do
      kept[line] = format('%d;%s;', before + line, now) .. ARGV[at + 1 + line]
    end
    in_parts('RPUSH', prefix .. 'lines:' .. id, kept)
    call('HSET', run_key, 'log_lines', before + count)
  end
  at = at + 2 + count
end
