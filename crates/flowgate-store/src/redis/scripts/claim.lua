-- Leases due jobs in the order of their queues.
--
-- KEYS[1]  prefix of the partition
-- ARGV[1]  instance that claims
-- ARGV[2]  milliseconds of the leases
-- ARGV[3]  jobs at most
-- ARGV[4]  bytes of payloads at most; the caller reads what is missing
-- ARGV[5]  number of queues, or -1 for all, or -1 - n for all but n; then their names,
--   and `@` and a pool for all of that pool too
-- Reply    time, deadline of the leases; then for each job an array: run id, step, order, token,
--   attempt, queue, job, lost leases, record (empty if a job before it has it), and last event and
--   text of each row of the log that holds an input
local meta = call('HMGET', meta_key, 'clock_ms', 'token', 'partitions', 'partition')
local now = clock(meta[1])
local token, partitions, partition = tonumber(meta[2]), tonumber(meta[3]), tonumber(meta[4])
local instance, slots, bytes = ARGV[1], tonumber(ARGV[3]), tonumber(ARGV[4])
local deadline = format('%d', now + ARGV[2])
local replies = { now, tonumber(deadline) }

expire(now, 1000)

local queues, chosen = {}, tonumber(ARGV[5])
if chosen < 0 then
  local left_out = {}
  for at = 6, 4 - chosen do left_out[ARGV[at]] = true end
  for _, queue in ipairs(call('SMEMBERS', prefix .. 'queues')) do
    if is_wanted(queue, left_out) then queues[#queues + 1] = queue end
  end
else
  for at = 6, 5 + chosen do queues[#queues + 1] = ARGV[at] end
end
local heads = {}
for _, queue in ipairs(queues) do
  local found = call('ZRANGEBYSCORE', prefix .. 'queue:' .. queue, '-inf', now * 1000 + 999,
    'WITHSCORES', 'LIMIT', 0, slots)
  for at = 1, #found, 2 do
    heads[#heads + 1] = { tonumber(found[at + 1]), found[at], queue }
  end
end
table.sort(heads, function(one, other)
  return one[1] < other[1] or (one[1] == other[1] and one[2] < other[2])
end)

local function add_inputs(reply, run_key, version, job, seen)
  for seq in string.gmatch(match(job, ':(.*)$'), '%d+') do
    local number, is_there = tonumber(seq), false
    for _, row in ipairs(seen) do
      is_there = is_there or (row[1] < number and number <= row[2])
    end
    if not is_there then
      if bytes <= 0 then return end
      local last = row_of(run_key, number, version)
      if last then
        local row = call('HGET', run_key, format('%d', last))
        seen[#seen + 1] = { last - match(row, ROW), last }
        bytes = bytes - #row
        reply[#reply + 1], reply[#reply + 2] = last, row
      end
    end
  end
end

local leased, withdrawn, known = {}, {}, {}
for index = 1, math.min(slots, #heads) do
  local head = heads[index]
  local member, queue = head[2], head[3]
  local id, step = sub(member, 1, 36), sub(member, 38)
  local run_key = prefix .. 'run:' .. id
  local found = call('HMGET', run_key, 'record', 'job:' .. step, 'lost:' .. step, 'version')
  local gone = withdrawn[queue] or {}
  withdrawn[queue] = gone
  gone[#gone + 1] = member
  -- A job that is queued twice is leased after its first turn.
  if found[2] and sub(found[2], 1, 1) == 'Q' then
    local _, has_lost, before, _, attempt, due, _, job, who = match(found[2], STATE)
    local lost = found[3] or ''
    if before ~= '0' then
      lost = lost .. attempt .. ';' .. before .. ';' .. who .. '\n'
      has_lost = '1'
      call('HSET', run_key, 'lost:' .. step, lost)
    end
    token = token + 1
    local granted, next_attempt = format('%d', token * partitions + partition), format('%d', attempt + 1)
    call('HSET', run_key, 'job:' .. step, format('L%s;%s;%s;%s;%s;%s;%s;%s', has_lost, granted,
      deadline, next_attempt, due, queue, job, instance))
    leased[#leased + 1], leased[#leased + 2] = deadline, id
    local reply = { id, step, format('%d', head[1]), granted, next_attempt, queue, job, lost,
      known[id] and '' or found[1] }
    known[id] = known[id] or {}
    add_inputs(reply, run_key, tonumber(found[4]), job, known[id])
    replies[#replies + 1] = reply
  end
end
if #leased > 0 then
  call('HSET', meta_key, 'token', token)
  add_leases(leased)
end
for queue, members in pairs(withdrawn) do in_parts('ZREM', prefix .. 'queue:' .. queue, members) end
return replies
