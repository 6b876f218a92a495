// A telephone in a page: JsSIP does SIP over WebSocket (RFC 7118), the browser does DTLS-SRTP and ICE.
const JsSIP = require('jssip');

const element = id => document.getElementById(id);
const status = text => { element('status').textContent = text; };

let agent = null;
let session = null;

/// Shows a call's progress and plays its audio.
function attach(next, incoming) {
  session = next;
  element('answer').disabled = !incoming;
  element('hangup').disabled = false;
  status(incoming ? `Call from ${next.remote_identity.uri.user}` : 'Calling ...');
  next.on('progress', () => { if (!incoming) status('Ringing ...'); });
  next.on('confirmed', () => { element('answer').disabled = true; status('In a call.'); });
  const end = event => {
    session = null;
    element('answer').disabled = element('hangup').disabled = true;
    status(`Call ended: ${event.cause}`);
  };
  next.on('ended', end);
  next.on('failed', end);
  const listen = connection => connection.addEventListener('track', event => {
    element('audio').srcObject = event.streams[0] || new MediaStream([event.track]);
  });
  if (next.connection) listen(next.connection);
  else next.on('peerconnection', event => listen(event.peerconnection));
}

function register() {
  if (agent) agent.stop();
  const server = element('server').value;
  const user = element('user').value;
  const host = new URL(server).hostname;
  agent = new JsSIP.UA({
    sockets: [new JsSIP.WebSocketInterface(server)],
    uri: `sip:${user}@${host}`,
    password: element('password').value,
    register_expires: 300,
  });
  agent.on('registered', () => status(`Registered as ${user}.`));
  agent.on('unregistered', () => status('Not registered.'));
  agent.on('registrationFailed', event => status(`Not registered: ${event.cause}`));
  agent.on('disconnected', () => status('No connection to the server.'));
  agent.on('newRTCSession', event => {
    // One call at a time.
    if (session) event.session.terminate({status_code: 486});
    else attach(event.session, event.originator === 'remote');
  });
  agent.start();
}

const audio = {mediaConstraints: {audio: true, video: false}};
const call = () => {
  if (agent && !session) agent.call(`sip:${element('number').value}@${new URL(element('server').value).hostname}`, audio);
};

element('account').addEventListener('submit', event => { event.preventDefault(); register(); });
element('call').addEventListener('submit', event => { event.preventDefault(); call(); });
element('answer').addEventListener('click', () => session && session.answer(audio));
element('hangup').addEventListener('click', () => session && session.terminate());

// `index.html?user=1000&password=...&number=1001` registers and calls at once, `seconds` ends the call.
const query = new URLSearchParams(location.search);
for (const name of ['server', 'user', 'password', 'number']) {
  if (query.has(name)) element(name).value = query.get(name);
}
if (query.has('password')) {
  register();
  if (query.has('number')) agent.once('registered', call);
  if (query.has('seconds')) {
    agent.on('newRTCSession', event => event.session.on('confirmed', () =>
      setTimeout(() => event.session.terminate(), Number(query.get('seconds')) * 1000)));
  }
}
