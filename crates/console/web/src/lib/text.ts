// Values from the network as visible text. Svelte escapes HTML; here are the characters that change how text is drawn:
// control characters, characters that turn the direction of writing, and characters without width.

const INVISIBLE = /[\u0000-\u001f\u007f-\u009f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]/g;

function escaped(character: string): string {
  const code = character.charCodeAt(0);
  return code < 0x100 ? `\\x${code.toString(16).padStart(2, '0')}` : `\\u{${code.toString(16)}}`;
}

/** The text with all of these characters escaped. */
export function visible(value: unknown): string {
  if (value === null || value === undefined) return '';
  const text = typeof value === 'string' ? value : typeof value === 'object' ? JSON.stringify(value) : String(value);
  return text.replace(INVISIBLE, escaped);
}

/** The same, at most `most` characters long. */
export function shortened(value: unknown, most: number): string {
  const text = visible(value);
  return text.length > most ? `${text.slice(0, most - 1)}\u2026` : text;
}
