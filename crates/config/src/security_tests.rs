//! Keying and crypto suites of SRTP in a configuration.

use crate::{Config, parse};

fn with_srtp(keys: &str) -> Result<Config, String> {
    let head = "[[interface]]\nname = \"a\"\nlisten = \"udp:192.0.2.1:5060\"\nsrtp = \"require\"\n";
    parse(&format!("{head}{keys}"), "f").map_err(|mistakes| {
        let texts: Vec<String> = mistakes.iter().map(ToString::to_string).collect();
        texts.join("\n")
    })
}

#[test]
fn dtls_has_no_suite_that_would_end_the_call() {
    for (keys, expected) in [
        (
            "srtp_keying = \"dtls\"\nsrtp_suites = \"AES_CM_128_HMAC_SHA1_80\"\n",
            "DTLS agrees on AEAD_AES_128_GCM with each peer",
        ),
        (
            "srtp_keying = [\"sdes\", \"dtls\"]\n\
             srtp_suites = [\"AES_CM_128_HMAC_SHA1_80\", \"AEAD_AES_256_GCM\"]\n",
            "add AEAD_AES_128_GCM, or remove \"dtls\"",
        ),
    ] {
        let text = with_srtp(keys).unwrap_err();
        assert!(text.contains(expected), "{text}");
    }
    let suites = protect::dtls::Settings::default().profiles;
    for (keys, expected) in [
        ("srtp_suites = \"AEAD_AES_256_GCM\"\n", &suites[..1]),
        (
            "srtp_suites = [\"AEAD_AES_128_GCM\", \"AEAD_AES_256_GCM\"]\n",
            &suites[..2],
        ),
        ("", &suites[..]),
    ] {
        let config = with_srtp(&format!("srtp_keying = \"dtls\"\n{keys}")).unwrap();
        let mut agreed = config.interfaces[0].security.dtls_suites.clone();
        agreed.sort_by_key(|suite| suites.iter().position(|known| known == suite));
        assert_eq!(agreed, expected, "{keys}");
    }
    let without_dtls = with_srtp("srtp_suites = \"AES_CM_128_HMAC_SHA1_80\"\n");
    assert!(without_dtls.is_ok());
}
