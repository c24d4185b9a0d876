-- Rows of the feed, from the one that holds the first position that is asked for.
--
-- KEYS[1]  prefix of the partition
-- ARGV[1]  that position
-- ARGV[2]  events that are enough
-- ARGV[3]  bytes that are enough
-- Reply    position to go on from (0 at the end); then for each row an array: run id, last event,
--   its time and place, its text
local feed_key, first = prefix .. 'feed', tonumber(ARGV[1])
local events, bytes = tonumber(ARGV[2]), tonumber(ARGV[3])
local before = call('XREVRANGE', feed_key, ARGV[1], '-', 'COUNT', 1)[1]
local from = before and before[1] or '-'
local replies = { 0 }
while true do
  local page = call('XRANGE', feed_key, from, '+', 'COUNT', 16)
  for _, entry in ipairs(page) do
    local start = match(entry[1], '^%d+')
    from = '(' .. entry[1]
    for id, seq, count, offset in string.gmatch(entry[2][2], ROW_OF_FEED) do
      local ends = start + offset + count
      if ends > first then
        local row = call('HMGET', prefix .. 'run:' .. id, seq, 'at:' .. seq)
        if row[1] then
          replies[#replies + 1] = { id, seq, row[2], row[1] }
          events = events - math.min(count, ends - first)
          bytes = bytes - #row[1]
        end
        replies[1] = ends
        if events <= 0 or bytes <= 0 then return replies end
      end
    end
  end
  if #page < 16 then
    replies[1] = 0
    return replies
  end
end
