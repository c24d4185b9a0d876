-- Rows of the feed, from the one that holds the first position that is asked for.
--
-- KEYS[1]  prefix of the partition
-- ARGV[1]  that position
-- ARGV[2]  events that are enough
-- ARGV[3]  bytes that are enough
-- Reply    position to go on from (0 at the end); then for each row an array: run id, first
--   event, time, position, events
local feed_key, first = prefix .. 'feed', tonumber(ARGV[1])
local events, bytes = tonumber(ARGV[2]), tonumber(ARGV[3])
local before = call('XREVRANGE', feed_key, ARGV[1], '-', 'COUNT', 1)[1]
local from = before and before[1] or '-'
local replies = { 0 }
while true do
  local page = call('XRANGE', feed_key, from, '+', 'COUNT', 16)
  for _, entry in ipairs(page) do
    local position = tonumber(match(entry[1], '^%d+'))
    from = '(' .. entry[1]
    for id, seq, count in string.gmatch(entry[2][2], ROW_OF_FEED) do
      local ends = position + count
      if ends > first then
        local row = call('HMGET', prefix .. 'log:' .. id, seq, 'events:' .. seq)
        if row[1] then
          local _, at = match(row[1], ROW)
          local text = row[2]
          replies[#replies + 1] = { id, seq, at, position, text }
          events = events - math.min(count, ends - first)
          bytes = bytes - #text
        end
        replies[1] = ends
        if events <= 0 or bytes <= 0 then return replies end
      end
      position = ends
    end
  end
  if #page < 16 then
    replies[1] = 0
    return replies
  end
end
