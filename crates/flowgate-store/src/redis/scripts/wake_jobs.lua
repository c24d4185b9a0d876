-- Makes jobs due that are queued for later. Others stay as they are.
--
-- KEYS[1]  prefix of the partition
-- ARGV[1]  channel for hints
-- ARGV[2]  number of jobs; then for each: run id, step
-- Reply    for each job 1 if it is there, else 0
local meta = call('HMGET', meta_key, 'clock_ms', 'due_wanted_until')
local now, us = clock(meta[1])
local replies, states, queues, tickets = {}, {}, {}, 0
for index = 1, tonumber(ARGV[2]) do
  local id, step = ARGV[1 + 2 * index], ARGV[2 + 2 * index]
  local run_key, field = prefix .. 'run:' .. id, 'job:' .. step
  local state = call('HGET', run_key, field)
  replies[index] = state and state ~= '' and 1 or 0
  local head, due, tail
  if replies[index] == 1 then head, due, tail = match(state, '^(Q%d;%d+;%d+;%d+;)(%d+)(;.*)$') end
  if due and tonumber(due) >= (now + 1) * 1000 then
    local name, priority = match(tail, '^;([^;]*);%a+/?(%d*)')
    local queue = prefix .. 'queue:' .. name
    call('ZCARD', queue)
    -- As in a commit: in the order in which they became due, within a millisecond.
    local due_now = format('%d', now * 1000 + math.min(us + tickets, 999))
    tickets = tickets + 1
    states[#states + 1] = { run_key, field, head .. due_now .. tail }
    local order = priority ~= '' and order_of(due_now, priority) or due_now
    queues[#queues + 1] = { queue, order, id .. ':' .. step }
  end
end
for _, state in ipairs(states) do call('HSET', unpack(state)) end
for _, queue in ipairs(queues) do call('ZADD', unpack(queue)) end
if #queues > 0 and tonumber(meta[2] or 0) > now then call('PUBLISH', ARGV[1], 'due') end
return replies
