// The route is in the fragment of the URL: `#/calls/7?m=3`. It is never sent to the server, so that numbers and Call-IDs are in
// no access log, and needs no rule on the server.

export interface Route {
  path: string[];
  query: URLSearchParams;
}

function parse(): Route {
  const text = location.hash.replace(/^#\/?/, '');
  const [path = '', query = ''] = text.split('?', 2);
  const parts = path.split('/').filter((part) => part !== '');
  const decode = (part: string) => {
    try {
      return decodeURIComponent(part);
    } catch {
      return part;
    }
  };
  return { path: parts.map(decode), query: new URLSearchParams(query) };
}

let current = $state.raw(parse());

addEventListener('hashchange', () => {
  current = parse();
});

export const route = {
  get path() {
    return current.path;
  },
  get query() {
    return current.query;
  },
};

/** The link of a page. */
export function href(path: string[], query: Record<string, string | number | null | undefined> = {}): string {
  const search = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) {
    if (value !== null && value !== undefined && value !== '') search.set(name, String(value));
  }
  const text = search.toString();
  return `#/${path.map(encodeURIComponent).join('/')}${text ? `?${text}` : ''}`;
}

/** Goes to a page; `replace` leaves no entry in the history. */
export function go(target: string, replace = false): void {
  if (replace) {
    history.replaceState(null, '', target);
    current = parse();
  } else {
    location.hash = target.replace(/^#/, '');
  }
}
