//! Digest authentication in both roles, with the product's implementation.

use super::incoming::{Incoming, values};
use engine::Entropy;
use protect::digest::{
    Algorithm, Challenge, ClientSession, Qop, ResponseInput, Secret, answer_header, ha1,
};
use wire::sip::{AuthParams, Credentials, HeaderId, Message, unquote};

/// A challenge that is not answered yet.
#[derive(Clone, Debug)]
pub struct PendingChallenge {
    challenge: Challenge,
    header: HeaderId,
}

impl PendingChallenge {
    /// The challenge of a response; `None` without a supported one.
    pub fn read(response: &[u8]) -> Option<PendingChallenge> {
        let message = Message::parse(response).ok()?;
        let secret = Secret::Password(Vec::new());
        [HeaderId::WwwAuthenticate, HeaderId::ProxyAuthenticate]
            .into_iter()
            .find_map(|id| {
                let challenge = Challenge::choose(&message, id, &secret)
                    .into_iter()
                    .next()?;
                Some(PendingChallenge {
                    challenge,
                    header: answer_header(id),
                })
            })
    }

    /// The name of the header for credentials.
    pub fn header(&self) -> &'static [u8] {
        match self.header {
            HeaderId::ProxyAuthorization => b"Proxy-Authorization",
            _ => b"Authorization",
        }
    }

    /// Appends the value of that header.
    pub fn write(
        &self,
        username: &[u8],
        password: &[u8],
        request: &DigestRequest<'_>,
        session: &mut Option<Box<ClientSession>>,
        entropy: &mut Entropy,
        out: &mut Vec<u8>,
    ) {
        let same = session
            .as_ref()
            .is_some_and(|session| *session.challenge() == self.challenge);
        if !same {
            let secret = Secret::Password(password.to_vec());
            let made = ClientSession::new(self.challenge.clone(), username, &secret, entropy);
            *session = made.map(Box::new);
        }
        if let Some(session) = session {
            session.write_credentials(request.method, request.uri, request.body, out);
        }
    }
}

/// The parts of a request that its digest covers.
#[derive(Clone, Copy, Debug)]
pub struct DigestRequest<'r> {
    /// Method.
    pub method: &'r [u8],
    /// URI.
    pub uri: &'r [u8],
    /// Body.
    pub body: &'r [u8],
}

/// Whether a request's credentials match user and password. The nonce is chosen by the scenario and not checked.
pub fn verify(request: &Incoming<'_>, username: &[u8], password: &[u8]) -> bool {
    let headers = values(request.bytes, b"Authorization")
        .chain(values(request.bytes, b"Proxy-Authorization"));
    headers
        .filter_map(Credentials::parse)
        .any(|credentials| is_right(&credentials, request, username, password))
}

fn is_right(
    credentials: &Credentials<'_>,
    request: &Incoming<'_>,
    username: &[u8],
    password: &[u8],
) -> bool {
    let params: &AuthParams<'_> = &credentials.params;
    let get = |name: &[u8]| params.get(name).map(unquote).unwrap_or_default();
    let algorithm = match params.get(b"algorithm") {
        None => Some(Algorithm::MD5),
        Some(token) => Algorithm::from_token(token),
    };
    let qop = get(b"qop");
    let qop = match &*qop {
        b"" => Qop::None,
        token if token.eq_ignore_ascii_case(b"auth") => Qop::Auth,
        token if token.eq_ignore_ascii_case(b"auth-int") => Qop::AuthInt,
        _ => return false,
    };
    let Some(algorithm) = algorithm.filter(|_| credentials.is_digest()) else {
        return false;
    };
    if &*get(b"username") != username {
        return false;
    }
    let (realm, nonce, cnonce) = (get(b"realm"), get(b"nonce"), get(b"cnonce"));
    let (nc, uri) = (get(b"nc"), get(b"uri"));
    let expected = ResponseInput {
        algorithm,
        ha1: ha1(algorithm.hash, username, &realm, password),
        nonce: &nonce,
        cnonce: &cnonce,
        nc: &nc,
        qop,
        method: request.method,
        uri: &uri,
        body: request.body(),
    };
    expected.response().matches(&get(b"response"))
}
