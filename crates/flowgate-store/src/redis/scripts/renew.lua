-- Extends leases that are still held. Their runs stay where they are among the leases: an entry may
-- be early.
--
-- KEYS[1]  prefix of the partition
-- ARGV[1]  milliseconds of the leases from now
-- ARGV[2]  number of leases; then for each: run id, step, token
-- Reply    for each lease when it ends, or 0 if it is lost
local now = clock(call('HGET', meta_key, 'clock_ms'))
local replies = {}
for at = 3, 3 * ARGV[2], 3 do
  local id, step = ARGV[at], ARGV[at + 1]
  local run_key, field = prefix .. 'run:' .. id, 'job:' .. step
  local state = call('HGET', run_key, field)
  local head, token, ends, rest
  if state then head, token, ends, rest = match(state, '^(L%d;(%d+);)(%d+)(;.*)$') end
  if not head or token ~= ARGV[at + 2] or tonumber(ends) <= now then
    replies[#replies + 1] = 0
  else
    local deadline = math.max(now + ARGV[1], tonumber(ends))
    call('HSET', run_key, field, head .. format('%d', deadline) .. rest)
    replies[#replies + 1] = deadline
  end
end
return replies
