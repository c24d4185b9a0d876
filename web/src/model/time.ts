/** Times and spans in words. */

const SECOND = 1_000;
const MINUTE = 60 * SECOND;
const HOUR = 60 * MINUTE;
const DAY = 24 * HOUR;

const MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

/** A span in one or two units: `340 ms`, `1.2 s`, `2 min 3 s`, `1 h 2 min`, `3 d 4 h`. */
export function span(ms: number): string {
  if (!Number.isFinite(ms)) return "–";
  if (ms < 0) return "0 ms";
  if (ms < SECOND) return `${Math.round(ms)} ms`;
  if (ms < 10 * SECOND) return `${(Math.floor(ms / 100) / 10).toFixed(1)} s`;
  if (ms < MINUTE) return `${Math.floor(ms / SECOND)} s`;
  if (ms < HOUR) return two(ms, MINUTE, "min", SECOND, "s");
  if (ms < DAY) return two(ms, HOUR, "h", MINUTE, "min");
  return two(ms, DAY, "d", HOUR, "h");
}

function two(ms: number, big: number, bigName: string, small: number, smallName: string): string {
  const rest = Math.floor((ms % big) / small);
  const first = `${Math.floor(ms / big)} ${bigName}`;
  return rest === 0 ? first : `${first} ${rest} ${smallName}`;
}

/** A span in its largest unit alone: `45 s`, `2 min`, `3 h`, `4 d`. */
export function rough(ms: number): string {
  const size = Math.abs(ms);
  if (size < MINUTE) return `${Math.floor(size / SECOND)} s`;
  if (size < HOUR) return `${Math.floor(size / MINUTE)} min`;
  if (size < DAY) return `${Math.floor(size / HOUR)} h`;
  return `${Math.floor(size / DAY)} d`;
}

/** How a time stands to now: `just now`, `2 min ago`, `in 3 h`; a date after four weeks. */
export function relative(at: number, now: number): string {
  const away = at - now;
  const size = Math.abs(away);
  if (size < SECOND) return "just now";
  if (size >= 28 * DAY) return day(at, now);
  return away < 0 ? `${rough(away)} ago` : `in ${rough(away)}`;
}

/** The day in the zone of whoever reads, with the year if it is another. */
function day(at: number, now: number): string {
  const date = new Date(at);
  const text = `${date.getDate()} ${MONTHS[date.getMonth()]}`;
  return date.getFullYear() === new Date(now).getFullYear() ? text : `${text} ${date.getFullYear()}`;
}

const pad = (value: number, width = 2) => String(value).padStart(width, "0");

/** The whole time in the zone of whoever reads, and in UTC. */
export function absolute(at: number): string {
  const date = new Date(at);
  const local = `${date.getDate()} ${MONTHS[date.getMonth()]} ${date.getFullYear()}, ${clock(at)}`;
  return `${local}\n${date.toISOString()}`;
}

/** The time of the day with milliseconds. */
export function clock(at: number): string {
  const date = new Date(at);
  return `${pad(date.getHours())}:${pad(date.getMinutes())}:${pad(date.getSeconds())}.${pad(date.getMilliseconds(), 3)}`;
}

/** The moment in a sentence: the time of the day, with the day if it is another. */
export function moment(at: number, now: number): string {
  const isToday = new Date(at).toDateString() === new Date(now).toDateString();
  return isToday ? clock(at).slice(0, 8) : dayAndMinute(at);
}

/** The minute of a time that follows another: the day is said if it is another one. */
export function minuteAfter(at: number, before: number): string {
  const isSameDay = new Date(at).toDateString() === new Date(before).toDateString();
  return isSameDay ? clock(at).slice(0, 5) : dayAndMinute(at);
}

/** The day and the minute: `16 Nov, 07:00`. */
export function dayAndMinute(at: number): string {
  const date = new Date(at);
  return `${date.getDate()} ${MONTHS[date.getMonth()]}, ${pad(date.getHours())}:${pad(date.getMinutes())}`;
}

/** How long after the start: `+1.204 s`, `+2:03`, `+1:02:03`. */
export function offset(ms: number): string {
  if (ms < MINUTE) return `+${(Math.max(ms, 0) / SECOND).toFixed(3)}`;
  const [h, m, s] = [Math.floor(ms / HOUR), Math.floor((ms % HOUR) / MINUTE), Math.floor((ms % MINUTE) / SECOND)];
  return h > 0 ? `+${h}:${pad(m)}:${pad(s)}` : `+${m}:${pad(s)}`;
}

/** Round distances for the ticks of an axis that is `width` long, about `count` of them. */
export function ticks(width: number, count: number): number[] {
  if (width <= 0) return [0];
  const steps = [
    1, 2, 5, 10, 20, 50, 100, 200, 500, SECOND, 2 * SECOND, 5 * SECOND, 10 * SECOND, 15 * SECOND, 30 * SECOND,
    MINUTE, 2 * MINUTE, 5 * MINUTE, 10 * MINUTE, 15 * MINUTE, 30 * MINUTE, HOUR, 2 * HOUR, 6 * HOUR, 12 * HOUR,
    DAY, 2 * DAY, 7 * DAY, 14 * DAY, 28 * DAY,
  ];
  const step = steps.find((each) => width / each <= count) ?? Math.ceil(width / count / DAY) * DAY;
  const all: number[] = [];
  for (let at = 0; at <= width; at += step) all.push(at);
  return all;
}
