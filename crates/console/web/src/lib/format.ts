// Times, durations and figures as text. All times are UTC.

/** Microseconds since the Unix epoch of an RFC 3339 time; NaN if it is none. */
export function micros(at: string | null | undefined): number {
  if (!at) return NaN;
  const parts = /^(.*?)(?:\.(\d+))?(Z|[+-]\d\d:\d\d)$/.exec(at);
  if (!parts) return NaN;
  const whole = Date.parse(`${parts[1]}${parts[3]}`);
  return whole * 1000 + Number((parts[2] ?? '').padEnd(6, '0').slice(0, 6));
}

/** `2026-11-25 21:59:54`; with `digits` of the fraction of the second. */
export function dateTime(at: string | null | undefined, digits = 0): string {
  const time = micros(at);
  if (Number.isNaN(time)) return '';
  const date = new Date(Math.floor(time / 1000)).toISOString();
  return `${date.slice(0, 10)} ${clock(time, digits)}`;
}

/** `21:59:54.123456` of microseconds since the epoch. */
export function clock(time: number, digits = 6): string {
  if (!Number.isFinite(time)) return '';
  const text = new Date(Math.floor(time / 1000)).toISOString().slice(11, 19);
  const fraction = String(((time % 1e6) + 1e6) % 1e6).split('.')[0]?.padStart(6, '0') ?? '';
  return digits > 0 ? `${text}.${fraction.slice(0, digits)}` : text;
}

/** A distance of microseconds: `+0.000213`, `+12.5`. */
export function distance(time: number): string {
  if (!Number.isFinite(time)) return '';
  const seconds = Math.abs(time) / 1e6;
  const digits = seconds < 1 ? 6 : seconds < 100 ? 3 : 1;
  return `${time < 0 ? '-' : '+'}${seconds.toFixed(digits)}`;
}

/** `0.4 s`, `2:05`, `1:02:03`. */
export function duration(seconds: number | null | undefined): string {
  if (seconds === null || seconds === undefined || !Number.isFinite(seconds)) return '';
  if (seconds < 60) return `${seconds.toFixed(1)} s`;
  const whole = Math.floor(seconds);
  const two = (value: number) => String(value).padStart(2, '0');
  const [hours, minutes] = [Math.floor(whole / 3600), Math.floor(whole / 60) % 60];
  return hours > 0 ? `${hours}:${two(minutes)}:${two(whole % 60)}` : `${minutes}:${two(whole % 60)}`;
}

/** A figure with at most `digits` after the point and groups of thousands; a dash if it is not known. */
export function figure(value: number | null | undefined, digits = 0): string {
  if (value === null || value === undefined || !Number.isFinite(value)) return '–';
  return value.toLocaleString('en-US', { maximumFractionDigits: digits, minimumFractionDigits: digits });
}

/** Milliseconds of jitter with the decimals of their source: rtpengine reports whole ones. */
export function jitter(of: { jitter_ms?: number | null; jitter_whole_ms?: boolean }): string {
  return figure(of.jitter_ms, of.jitter_whole_ms ? 0 : 2);
}

export function percent(ratio: number | null | undefined, digits = 1): string {
  return ratio === null || ratio === undefined || !Number.isFinite(ratio) ? '–' : `${(ratio * 100).toFixed(digits)} %`;
}

/** Class of a MOS: good from 4.0, fair from 3.6 (ITU-T G.107 Annex B: most users satisfied, some dissatisfied). */
export function mosClass(mos: number | null | undefined): string {
  if (mos === null || mos === undefined) return '';
  return mos >= 4 ? 'ok' : mos >= 3.6 ? 'warn' : 'bad';
}

/** Class of a final status. */
export function statusClass(status: number | null | undefined): string {
  if (!status) return '';
  if (status < 200) return 'muted';
  return status < 300 ? 'ok' : status < 400 ? 'warn' : 'bad';
}
