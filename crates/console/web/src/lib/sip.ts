// Parts of a SIP message for colouring. One pass over each line, so that a hostile message costs no more than its length.

export interface Token {
  /** Class of the part: empty for plain text. */
  kind: '' | 'method' | 'status' | 'uri' | 'name' | 'param' | 'text' | 'type';
  text: string;
}

/** Longer lines are one part: thousands of elements for one header help no reader. */
const LONG = 2_000;

export interface MessageLine {
  text: string;
  body: boolean;
}

/** Lines of a message; the empty line ends the header. */
export function lines(raw: string): MessageLine[] {
  const all = raw.split('\n').map((line) => (line.endsWith('\r') ? line.slice(0, -1) : line));
  if (all.at(-1) === '') all.pop();
  let body = false;
  return all.map((text) => {
    const line = { text, body };
    if (text === '') body = true;
    return line;
  });
}

export function tokens(line: MessageLine, first: boolean): Token[] {
  const { text } = line;
  if (text.length > LONG || text === '') return [{ kind: '', text }];
  if (line.body) return body(text);
  return first ? start(text) : header(text);
}

function start(text: string): Token[] {
  const response = /^(SIP\/2\.0)( +)(\d{3})(.*)$/.exec(text);
  if (response) {
    const [, version = '', space = '', status = '', reason = ''] = response;
    return [
      { kind: '', text: version + space },
      { kind: 'status', text: status + reason },
    ];
  }
  const space = text.indexOf(' ');
  const last = text.lastIndexOf(' ');
  if (space < 1 || last <= space) return [{ kind: '', text }];
  return [
    { kind: 'method', text: text.slice(0, space) },
    { kind: '', text: ' ' },
    { kind: 'uri', text: text.slice(space + 1, last) },
    { kind: '', text: text.slice(last) },
  ];
}

function body(text: string): Token[] {
  if (!/^[a-z]=/.test(text)) return [{ kind: '', text }];
  const colon = text.startsWith('a=') ? text.indexOf(':') : -1;
  const parts: Token[] = [{ kind: 'type', text: text.slice(0, 2) }];
  if (colon > 0) {
    parts.push({ kind: 'param', text: text.slice(2, colon) }, { kind: '', text: text.slice(colon) });
  } else {
    parts.push({ kind: '', text: text.slice(2) });
  }
  return parts;
}

function header(text: string): Token[] {
  const folded = text.startsWith(' ') || text.startsWith('\t');
  const colon = folded ? -1 : text.indexOf(':');
  const parts: Token[] = [];
  if (!folded) {
    if (colon < 1) return [{ kind: '', text }];
    parts.push({ kind: 'name', text: text.slice(0, colon) });
  }
  let at = folded ? 0 : colon;
  let plain = at;
  const flush = (end: number) => {
    if (end > plain) parts.push({ kind: '', text: text.slice(plain, end) });
  };
  const take = (kind: Token['kind'], end: number) => {
    flush(at);
    parts.push({ kind, text: text.slice(at, end) });
    at = end;
    plain = end;
  };
  while (at < text.length) {
    const character = text[at];
    if (character === '"') {
      let end = at + 1;
      while (end < text.length && text[end] !== '"') end += text[end] === '\\' ? 2 : 1;
      take('text', Math.min(end + 1, text.length));
    } else if (character === '<') {
      const end = text.indexOf('>', at);
      take('uri', end < 0 ? text.length : end + 1);
    } else if (character === ';') {
      let end = at + 1;
      while (end < text.length && /[\w.!%*+`'~ -]/.test(text[end] ?? '')) end += 1;
      take('param', end);
    } else {
      at += 1;
    }
  }
  flush(text.length);
  return parts;
}
