//! `[[user]]`: users of the embedded registrar.

use super::one_or_many::OneOrMany;
use super::sink::Sink;
use core::ops::Bound;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// A user of the embedded registrar.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RawUser {
    /// Name, as in `sip:NAME@...` and in digest credentials; unique.
    #[schemars(length(min = 1))]
    pub name: String,
    /// Password.
    pub password: Option<String>,
    /// MD5 of `name:realm:password`, 32 hexadecimal digits, instead of the password. If any user has `ha1`, only MD5 is
    /// offered in challenges.
    pub ha1: Option<String>,
    /// Telephone numbers of the user in addition to its name. The user part of From, and of the address of record in
    /// REGISTER, may be one of these, and calls to one of them go to the contacts of the user. A number such as
    /// `+43123450`, or a prefix with a star: `+4312345*`. A number without a registration of its own is
    /// reached at the contacts of the name, otherwise at those of the other numbers.
    #[serde(default)]
    pub numbers: OneOrMany<String>,
    /// Place of the called number in calls to one of `numbers`.
    #[serde(default)]
    pub called_number: RawCalledNumber,
}

/// Place of the called number in calls to a registered user.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub(super) enum RawCalledNumber {
    /// The To header. The Request-URI is the contact as registered (RFC 3261 section 16.5).
    #[default]
    To,
    /// The user part of the Request-URI too, in place of that of the contact, for systems that route by it.
    Uri,
}

/// A user: may register, and call with digest.
#[derive(Clone, PartialEq, Eq)]
pub struct UserSpec {
    /// Name, as in `sip:NAME@...` and in digest credentials.
    pub name: String,
    /// Secret for authentication.
    pub secret: UserSecret,
    /// Telephone numbers in addition to the name.
    pub numbers: Vec<Number>,
    /// Whether the Request-URI of calls to a number has that number as user part.
    pub number_in_uri: bool,
}

impl UserSpec {
    /// Whether the user part of an address is the name or a number of this user.
    pub fn is_called(&self, user: &str) -> bool {
        self.name == user || self.numbers.iter().any(|number| number.takes(user))
    }
}

/// Numbers of a user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Number {
    /// One number.
    One(String),
    /// All numbers with this prefix.
    Prefix(String),
}

impl Number {
    /// Whether the number is included.
    pub fn takes(&self, user: &str) -> bool {
        match self {
            Number::One(number) => number == user,
            Number::Prefix(prefix) => user.starts_with(prefix.as_str()),
        }
    }
}

/// Owners of numbers: a call finds the user of its number without a look at the others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NumberOwners {
    /// Names of users by whole number.
    whole: BTreeMap<String, String>,
    /// Names of users by prefix. Only those of one user begin with each other.
    prefixes: BTreeMap<String, String>,
    /// Bytes of the longest prefix: a number may be as long as a message.
    longest: usize,
}

impl NumberOwners {
    /// The name of the user that a number belongs to.
    pub(super) fn owner(&self, number: &str) -> Option<&str> {
        let whole = self.whole.get(number).map(String::as_str);
        whole.or_else(|| self.owner_of_prefix(number))
    }

    fn owner_of_prefix(&self, number: &str) -> Option<&str> {
        let mut prefixes = (1..=self.longest).map_while(|end| number.get(..end));
        prefixes
            .find_map(|prefix| self.prefixes.get(prefix))
            .map(String::as_str)
    }

    /// All prefixes.
    pub(super) fn prefixes(&self) -> impl Iterator<Item = &str> {
        self.prefixes.keys().map(String::as_str)
    }

    fn insert(&mut self, user: &UserSpec) {
        for number in &user.numbers {
            let (owners, text) = match number {
                Number::One(number) => (&mut self.whole, number),
                Number::Prefix(prefix) => {
                    self.longest = self.longest.max(prefix.len());
                    (&mut self.prefixes, prefix)
                }
            };
            owners.insert(text.clone(), user.name.clone());
        }
    }
}

/// The entries of a map whose keys begin with `prefix`.
fn below<'m, V>(
    map: &'m BTreeMap<String, V>,
    prefix: &'m str,
) -> impl Iterator<Item = (&'m str, &'m V)> {
    let from = (Bound::Included(prefix), Bound::Unbounded);
    map.range::<str, _>(from)
        .take_while(move |(key, _)| key.starts_with(prefix))
        .map(|(key, value)| (key.as_str(), value))
}

impl core::fmt::Debug for UserSpec {
    /// Omits the secret, because logs must not contain secrets.
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "User({})", self.name)
    }
}

/// Secret of a user.
#[derive(Clone, PartialEq, Eq)]
pub enum UserSecret {
    /// The password.
    Password(String),
    /// MD5 of `name:realm:password` in hexadecimal; requires MD5.
    Ha1(String),
}

impl core::fmt::Debug for UserSecret {
    /// Omits the secret.
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            UserSecret::Password(_) => "Password",
            UserSecret::Ha1(_) => "Ha1",
        })
    }
}

/// The users by name, and the owners of their numbers; `realm` is that of `ha1`.
pub(super) fn users(
    raw: &[RawUser],
    realm: &str,
    sink: &mut Sink<'_>,
) -> (BTreeMap<String, UserSpec>, NumberOwners) {
    let mut users = BTreeMap::new();
    let mut owners = NumberOwners::default();
    let mut first: BTreeMap<&str, usize> = BTreeMap::new();
    for (index, user) in raw.iter().enumerate() {
        let path = format!("user[{index}]");
        let name_path = format!("{path}.name");
        if let Some(&earlier) = first.get(user.name.as_str()) {
            let line = sink.line(&format!("user[{earlier}].name"));
            sink.report(
                &name_path,
                format!("user \"{}\" exists already in line {line}", user.name),
                "remove one of the two",
            );
            continue;
        }
        first.insert(&user.name, index);
        if user
            .name
            .bytes()
            .any(|b| b <= b' ' || b >= 0x7f || b"\"<>@:;?\\".contains(&b))
        {
            sink.report(
                &name_path,
                format!("\"{}\" cannot be the user part of a SIP address", user.name),
                "use letters, digits and - _ . + *",
            );
        }
        let secret = match (&user.password, &user.ha1) {
            (Some(_), Some(_)) => {
                sink.report(
                    &format!("{path}.ha1"),
                    "both `password` and `ha1` are set",
                    "remove one of the two",
                );
                continue;
            }
            (Some(password), None) if password.is_empty() => {
                sink.report(
                    &format!("{path}.password"),
                    "the password is empty",
                    "write a password",
                );
                continue;
            }
            (Some(password), None) => UserSecret::Password(password.clone()),
            (None, Some(ha1)) => {
                if ha1.len() != 32 || !ha1.bytes().all(|b| b.is_ascii_hexdigit()) {
                    sink.report(
                        &format!("{path}.ha1"),
                        "`ha1` must be 32 hexadecimal digits",
                        format!("write MD5 of \"{}:{}:PASSWORD\"", user.name, realm),
                    );
                }
                UserSecret::Ha1(ha1.to_ascii_lowercase())
            }
            (None, None) => {
                sink.report(
                    &path,
                    format!("user \"{}\" has no password", user.name),
                    "add `password` or `ha1`",
                );
                continue;
            }
        };
        let name = user.name.clone();
        let numbers = numbers(user, &path, sink);
        let called_number = user.called_number;
        let user = UserSpec {
            name: name.clone(),
            secret,
            numbers,
            number_in_uri: called_number == RawCalledNumber::Uri,
        };
        clashes(&user, (&users, &owners), &path, sink);
        owners.insert(&user);
        users.insert(name, user);
    }
    (users, owners)
}

fn numbers(user: &RawUser, path: &str, sink: &mut Sink<'_>) -> Vec<Number> {
    let at = format!("{path}.numbers");
    let mut numbers = Vec::new();
    for (index, text) in user.numbers.as_slice().iter().enumerate() {
        let (number, prefix) = match text.strip_suffix('*') {
            Some(prefix) => (prefix, true),
            None => (text.as_str(), false),
        };
        let good = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.+#".contains(&byte);
        if number.is_empty() || !number.bytes().all(good) {
            sink.report(
                &user.numbers.path(&at, index),
                format!("\"{text}\" is not a number"),
                "write it as in From and To, such as \"+43123450\", or a prefix with a star: \"+4312345*\"",
            );
            continue;
        }
        numbers.push(match prefix {
            true => Number::Prefix(number.to_owned()),
            false => Number::One(number.to_owned()),
        });
    }
    numbers
}

/// Refuses numbers that belong to several users.
fn clashes(
    user: &UserSpec,
    (users, owners): (&BTreeMap<String, UserSpec>, &NumberOwners),
    path: &str,
    sink: &mut Sink<'_>,
) {
    let mut others: BTreeSet<&str> = owners.owner(&user.name).into_iter().collect();
    for number in &user.numbers {
        match number {
            Number::One(number) => {
                others.extend(users.get_key_value(number).map(|(name, _)| name.as_str()));
                others.extend(owners.owner(number));
            }
            Number::Prefix(prefix) => {
                others.extend(below(users, prefix).map(|(name, _)| name));
                others.extend(below(&owners.whole, prefix).map(|(_, name)| name.as_str()));
                others.extend(below(&owners.prefixes, prefix).map(|(_, name)| name.as_str()));
                others.extend(owners.owner_of_prefix(prefix));
            }
        }
    }
    for other in others {
        sink.report(
            &format!("{path}.name"),
            format!(
                "users \"{other}\" and \"{}\" have a number in common",
                user.name
            ),
            "give each number to one user",
        );
    }
}

#[cfg(test)]
mod tests {
    use super::super::parse;

    const INTERFACE: &str = "[[interface]]\nname=\"a\"\nlisten=\"udp:192.0.2.1\"\n";

    #[test]
    fn numbers_lead_to_their_user() {
        let users = "[[user]]\nname=\"a\"\npassword=\"x\"\nnumbers=[\"+431\",\"+4320*\",\"+43205*\"]\n\
             [[user]]\nname=\"+4321\"\npassword=\"x\"\nnumbers=\"5*\"\n[[user]]\nname=\"c\"\npassword=\"x\"\n";
        let config = parse(&format!("{INTERFACE}{users}"), "f").unwrap();
        for (called, name) in [
            ("a", Some("a")),
            ("c", Some("c")),
            ("+431", Some("a")),
            ("+4311", None),
            ("+4320", Some("a")),
            ("+4320599", Some("a")),
            ("+432", None),
            ("+4321", Some("+4321")),
            ("5", Some("+4321")),
            ("55", Some("+4321")),
            ("", None),
            ("\u{e4}", None),
        ] {
            let found = config.user_called(called).map(|user| user.name.as_str());
            assert_eq!(found, name, "{called}");
        }
        let mut prefixes = config.number_prefixes();
        prefixes.sort();
        assert_eq!(prefixes.len(), 3);
        let long = "5".repeat(1 << 20);
        assert!(config.user_called(&long).is_some());
    }

    /// Neither the check nor a call looks at each user: that took seconds and milliseconds.
    #[test]
    fn many_users_with_numbers_are_checked_and_found() {
        let user = |at: u32| {
            let number = 1_000_000 + at;
            format!("[[user]]\nname=\"{at}\"\npassword=\"x\"\nnumbers=\"+43{number}\"\n")
        };
        let users: String = (0..5_000).map(user).collect();
        let config = parse(&format!("{INTERFACE}{users}"), "f").unwrap();
        for at in 0..5_000 {
            let called = format!("+43{}", 1_000_000 + at);
            let found = config.user_called(&called);
            assert_eq!(found.map(|user| user.name.clone()), Some(at.to_string()));
        }
    }
}
