//! ESP packets and vectors of standards and of other implementations.

use crate::common::{hex, json, testdata, to_hex};

use engine::{Entropy, Time};
use protect::cipher::{CbcKey, HmacMd5, HmacSha1, HmacSha256, HmacSha384, HmacSha512, PacketMac};
use protect::esp::{
    EspEncryption, EspFailure, EspIntegrity, EspKeys, EspSuite, EspTransform, InboundSa,
    InboundState, MAX_HEADROOM, MAX_TAILROOM, OutboundSa, OutboundState, PacketRoom, SaError,
    SaSpec, SaUsage,
};
use serde_json::Value;
use wire::capture::{Reader, Step};
use wire::esp::EspView;
use wire::ip::{IpPacket, protocol};

fn transform(
    encryption: EspEncryption,
    integrity: EspIntegrity,
    keys: (&[u8], &[u8]),
) -> EspTransform {
    EspTransform::new(
        EspSuite::new(encryption, integrity),
        &EspKeys::new(keys.0, keys.1),
    )
    .unwrap()
}

/// Opens an ESP packet; payload and next header.
fn open(
    transform: &EspTransform,
    packet: &[u8],
    high: Option<u32>,
) -> Result<(Vec<u8>, u8), EspFailure> {
    let mut packet = packet.to_vec();
    let opened = transform.open(&mut packet, high)?;
    Ok((packet[opened.range].to_vec(), opened.next_header))
}

/// Every bit of the packet but those of an initialisation vector without integrity matters.
fn tampering_is_found(transform: &EspTransform, packet: &[u8], high: Option<u32>) {
    for at in 0..packet.len() {
        let mut altered = packet.to_vec();
        altered[at] ^= 1 << (at % 8);
        assert_eq!(
            open(transform, &altered, high),
            Err(EspFailure::Authentication),
            "byte {at}"
        );
    }
    for length in 0..packet.len() {
        let cut = open(transform, &packet[..length], high);
        assert!(
            matches!(cut, Err(EspFailure::Authentication | EspFailure::Malformed)),
            "{length} bytes"
        );
    }
}

/// RFC 3602 section 4, case 5: a ping in transport mode. The packet has no ICV.
#[test]
fn rfc_3602_case_5() {
    let key = hex("90d382b410eeba7ad938c46cec1a82bf");
    let aes = transform(EspEncryption::AesCbc, EspIntegrity::None, (&key, &[]));
    let esp = hex("00004321 00000001 e96e8c08ab465763fd098d45dd3ff893
        f663c25d325c18c6a9453e194e120849a4870b66cc6b9965330013b4898dc856
        a4699e523a55db080b59ec3a8e4b7e52775b07d1db34ed9c538ab50c551b874a
        a269add047ad2d5913ac19b7cfbad4a6");
    let data = hex(
        "08000ebda70a00008e9c083db95b070008090a0b0c0d0e0f1011121314151617
        18191a1b1c1d1e1f202122232425262728292a2b2c2d2e2f3031323334353637",
    );
    assert_eq!(open(&aes, &esp, None), Ok((data, protocol::ICMP)));
}

/// RFC 3602 section 4, cases 1 to 4: the cipher alone.
#[test]
fn rfc_3602_cases_1_to_4() {
    let cases = [
        (
            "06a9214036b8a15b512e03d534120006",
            "3dafba429d9eb430b422da802c9fac41",
            "53696e676c6520626c6f636b206d7367",
            "e353779c1079aeb82708942dbe77181a",
        ),
        (
            "c286696d887c9aa0611bbb3e2025a45a",
            "562e17996d093d28ddb3ba695a2e6f58",
            "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f",
            "d296cd94c2cccf8a3a863028b5e1dc0a7586602d253cfff91b8266bea6d61ab1",
        ),
        (
            "6c3ea0477630ce21a2ce334aa746c2cd",
            "c782dc4c098c66cbd9cd27d825682c81",
            "5468697320697320612034382d62797465206d657373616765202865786163746c7920332041455320626c6f636b7329",
            "d0a02b3836451753d493665d33f0e8862dea54cdb293abc7506939276772f8d5021c19216bad525c8579695d83ba2684",
        ),
        (
            "56e47a38c5598974bc46903dba290349",
            "8ce82eefbea0da3c44699ed7db51b7d9",
            "a0a1a2a3a4a5a6a7a8a9aaabacadaeafb0b1b2b3b4b5b6b7b8b9babbbcbdbebfc0c1c2c3c4c5c6c7c8c9cacbcccdcecfd0d1d2d3d4d5d6d7d8d9dadbdcdddedf",
            "c30e32ffedc0774e6aff6af0869f71aa0f3af07a9a31a9c684db207eb0ef8e4e35907aa632c3ffdf868bb7b29d3d46ad83ce9f9a102ee99d49a53e87f4c3da55",
        ),
    ];
    for (key, iv, plain, cipher) in cases {
        let key = CbcKey::aes(&hex(key)).unwrap();
        let mut data = hex(plain);
        key.encrypt(&hex(iv), &mut data);
        assert_eq!(to_hex(&data), cipher);
        key.decrypt(&hex(iv), &mut data);
        assert_eq!(to_hex(&data), plain);
    }
}

/// draft-mcgrew-gcm-test-01, the vectors for RFC 4106: a DNS query with an extended sequence number.
#[test]
fn rfc_4106_draft_vector() {
    let key = hex("4c80cdefbb5d10da906ac73c3613a634 2e443b68");
    let gcm = transform(EspEncryption::AesGcm16, EspIntegrity::None, (&key, &[]));
    let esp = hex("00004321 00000000 4956ed7e3b244cfe
        fecf537e729d5b07dc30df528dd22b768d1b98736696a6fd348509fa13ceac34
        cfa2436f14a3f3cf65925bf1f4a13c5d15b21e1884f5ff6247aeabb786b93bce
        61bc17d768fd9732 459018148f6cbe722fd04796562dfdb4");
    let plain = hex(
        "45000048699a000080114db7c0a80102c0a801010a9bf15638d3010000010000
        00000000045f736970045f7564700373697009637962657263697479 02646b0000210001",
    );
    let high = Some(0x8765_4321);
    assert_eq!(open(&gcm, &esp, high), Ok((plain, 1)));
    tampering_is_found(&gcm, &esp, high);
    assert_eq!(open(&gcm, &esp, None), Err(EspFailure::Authentication));
}

/// RFC 7634 appendix A: a ping with ChaCha20-Poly1305. We seal the same bytes but for the initialisation vector, and
/// open theirs.
#[test]
fn rfc_7634_appendix_a() {
    let key: Vec<u8> = (0x80..=0x9f).chain(0xa0..=0xa3).collect();
    let chacha = transform(
        EspEncryption::ChaCha20Poly1305,
        EspIntegrity::None,
        (&key, &[]),
    );
    let esp = hex("01020304 00000005 1011121314151617
        24039428b97f417e3c13753a4f05087b67c352e6a7fab1b982d466ef407ae5c6
        14ee8099d52844eb61aa95dfab4c02f72aa71e7c4c4f64c9befe2facc638e8f3
        cbec163fac469b502773f6fb94e664da9165b82829f641e0
        76aaa8266b7fb0f7b11b369907e1ad43");
    let packet = hex(
        "45000054a6f200004001e778c6336405c000020508005b7a3a080000553bec10
        0007362708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f20212223
        2425262728292a2b2c2d2e2f3031323334353637",
    );
    assert_eq!(
        open(&chacha, &esp, None),
        Ok((packet.clone(), protocol::IPIP))
    );
    tampering_is_found(&chacha, &esp, None);

    let mut sealed = [&esp[..16], &packet, &[1, 2, 2, 4], &[0; 16]].concat();
    chacha.seal(&mut sealed, None).unwrap();
    assert_eq!(to_hex(&sealed), to_hex(&esp));
}

fn encryption_of(name: &str) -> EspEncryption {
    match name {
        "NULL" => EspEncryption::Null,
        "DES" => EspEncryption::Des,
        "3DES" => EspEncryption::TripleDes,
        "Blowfish" => EspEncryption::Blowfish,
        "AES-CBC" => EspEncryption::AesCbc,
        "AES-GCM" => EspEncryption::AesGcm16,
        "CHACHA20-POLY1305" | "ChaCha20-Poly1305" => EspEncryption::ChaCha20Poly1305,
        other => panic!("an algorithm that this test does not know: {other}"),
    }
}

fn integrity_of(name: &str) -> EspIntegrity {
    match name {
        "NULL" | "AEAD-16" => EspIntegrity::None,
        "HMAC-MD5-96" => EspIntegrity::HmacMd5,
        "HMAC-SHA1-96" => EspIntegrity::HmacSha1,
        "SHA2-256-128" => EspIntegrity::HmacSha256,
        "SHA2-384-192" => EspIntegrity::HmacSha384,
        "SHA2-512-256" => EspIntegrity::HmacSha512,
        other => panic!("an algorithm that this test does not know: {other}"),
    }
}

/// A matrix of packets by scapy: each opens to its payload; altered ones do not; sealed again with the same
/// initialisation vector they are the same bytes.
#[test]
fn scapy_packets() {
    let Some(folder) = testdata() else { return };
    let file = json(&folder, "crypto/esp-packets-part1.json");
    let packets = file["packets"].as_array().unwrap();
    for packet in packets {
        let text = |field: &str| packet[field].as_str().unwrap();
        let number = |field: &str| packet[field].as_u64();
        let suite = EspSuite::new(
            encryption_of(text("encryption")),
            integrity_of(text("integrity")),
        );
        let keys = EspKeys::new(&hex(text("encryption_key")), &hex(text("integrity_key")));
        let transform = EspTransform::new(suite, &keys).unwrap();
        let high = number("esn_high").map(|high| high as u32);
        let esp = hex(text("esp"));
        let view = EspView::parse(&esp).unwrap();
        assert_eq!(Some(u64::from(view.spi())), number("spi"));
        let (payload, next) = open(&transform, &esp, high).unwrap();
        assert_eq!(to_hex(&payload), text("expected_inner_payload"));
        assert_eq!(Some(u64::from(next)), number("expected_next_header"));
        if suite.authenticates() {
            tampering_is_found(&transform, &esp, high);
        }
        let mut again = esp.clone();
        let plain = transform.open(&mut again, high).unwrap();
        assert_eq!(plain.range.len(), payload.len());
        transform.seal(&mut again, high).unwrap();
        assert_eq!(to_hex(&again), to_hex(&esp), "{}", packet["id"]);
        whole_packet(packet, suite, keys, &payload);
    }
    assert_eq!(packets.len(), 55);
}

/// The complete IP packet through an association.
fn whole_packet(packet: &Value, suite: EspSuite, keys: EspKeys, payload: &[u8]) {
    let number = |field: &str| packet[field].as_u64().unwrap();
    let mut spec = SaSpec::new(number("spi") as u32, suite, keys);
    assert_eq!(packet["mode"], "transport");
    spec.extended_sequence = packet["esn"] == true;
    if !suite.is_combination() {
        let refused = InboundSa::new(spec, Time::ZERO).unwrap_err();
        assert_eq!(refused, SaError::Combination(suite));
        return;
    }
    assert_eq!(spec.check().is_err(), suite.is_weak(), "{suite}");
    spec.allow_weak = true;
    let high = packet["esn_high"].as_u64().unwrap_or(0);
    let state = InboundState {
        spi: spec.spi,
        highest_sequence: (high << 32 | number("seq")) - 1,
        received: if spec.replay_window > 0 {
            vec![0]
        } else {
            vec![]
        },
        usage: SaUsage::default(),
    };
    let mut inbound = InboundSa::resume(spec, &state, 0, Time::ZERO).unwrap();
    let outer = hex(packet["outer_packet"].as_str().unwrap());
    let mut bytes = outer.clone();
    let length = bytes.len();
    let mut room = PacketRoom::new(&mut bytes, 0, length);
    let opened = inbound.open_packet(&mut room, Time::ZERO).unwrap();
    let inner = IpPacket::parse(room.packet()).unwrap();
    assert_eq!(inner.payload, payload);
    assert_eq!(
        u64::from(opened.next_header),
        number("expected_next_header")
    );
    assert_eq!(u64::from(inner.protocol), number("expected_next_header"));
    if suite.authenticates() {
        let mut bytes = outer;
        let mut room = PacketRoom::new(&mut bytes, 0, length);
        let again = inbound.open_packet(&mut room, Time::ZERO);
        assert_eq!(again, Err(EspFailure::Replayed));
    }
}

/// tcpdump's captures of tunnels in a tunnel: each layer is opened with its key, up to the ping inside. The integrity
/// key is unknown, so that the last 12 bytes are cut off.
#[test]
fn tcpdump_captures() {
    let Some(folder) = testdata() else { return };
    let mut packets = 0;
    for (name, encryption) in [
        ("tcpdump-3des-tunnel", EspEncryption::TripleDes),
        ("tcpdump-aes256-tunnel", EspEncryption::AesCbc),
    ] {
        let expected = json(&folder, &format!("captures/esp/{name}.expected.json"));
        let path = folder.join(format!("captures/esp/{name}.pcap"));
        let frames = frames(&std::fs::read(path).unwrap());
        for packet in expected["packets"].as_array().unwrap() {
            let frame = packet["frame"].as_u64().unwrap() as usize - 1;
            let mut inner = frames[frame].clone();
            for layer in packet["layers"].as_array().unwrap() {
                let key = expected["keys"][layer["key"].as_str().unwrap()].as_str();
                let transform =
                    transform(encryption, EspIntegrity::None, (&hex(key.unwrap()), &[]));
                let ip = IpPacket::parse(&inner).unwrap();
                assert_eq!(ip.protocol, protocol::ESP);
                let icv = layer["icv_len_assumed"].as_u64().unwrap() as usize;
                let esp = &ip.payload[..ip.payload.len() - icv];
                let spi = EspView::parse(esp).unwrap().spi();
                assert_eq!(format!("{spi:#010x}"), layer["spi"].as_str().unwrap());
                let (payload, next) = open(&transform, esp, None).unwrap();
                assert_eq!(Some(u64::from(next)), layer["next_header"].as_u64());
                inner = payload;
            }
            assert_eq!(to_hex(&inner), packet["inner_packet"].as_str().unwrap());
            packets += 1;
        }
    }
    assert_eq!(packets, 16);
}

/// The IP packets of a capture.
fn frames(file: &[u8]) -> Vec<Vec<u8>> {
    let (mut reader, mut input, mut frames) = (Reader::new(), file, Vec::new());
    loop {
        match reader.step(input, true) {
            Step::Frame { used, frame } => {
                let inner = wire::ethernet::network_packet(frame.link, frame.data).unwrap();
                frames.push(inner.payload.to_vec());
                input = &input[used..];
            }
            Step::Skip { used } => input = &input[used..],
            Step::End => return frames,
            other => panic!("{other:?}"),
        }
    }
}

/// strongSwan's vectors of ciphers in CBC mode.
#[test]
fn cbc_vectors() {
    let Some(folder) = testdata() else { return };
    let file = json(&folder, "crypto/esp-ciphers-cbc.json");
    let mut tested = 0;
    for vector in file["vectors"].as_array().unwrap() {
        let text = |field: &str| hex(vector[field].as_str().unwrap_or_default());
        let key = match vector["alg"].as_str().unwrap() {
            "ENCR_AES_CBC" => CbcKey::aes(&text("key")),
            "ENCR_3DES" => CbcKey::triple_des(&text("key")),
            "ENCR_DES" => CbcKey::des(&text("key")),
            "ENCR_BLOWFISH" => CbcKey::blowfish(&text("key")),
            "ENCR_NULL" => continue,
            // ECB: a chain of one block with an initialisation vector of zeros.
            "ENCR_DES_ECB" if text("plain").len() == 8 => CbcKey::des(&text("key")),
            other => {
                println!("not for ESP: {other} {}", vector["name"]);
                continue;
            }
        };
        let key = key.unwrap();
        let mut iv = text("iv");
        iv.resize(key.block_length(), 0);
        let mut data = text("plain");
        key.encrypt(&iv, &mut data);
        assert_eq!(data, text("cipher"), "{}", vector["name"]);
        key.decrypt(&iv, &mut data);
        assert_eq!(data, text("plain"), "{}", vector["name"]);
        tested += 1;
    }
    assert!(tested >= 10, "{tested}");
}

/// strongSwan's vectors of AES-GCM, with tags of 8, 12 and 16 bytes.
#[test]
fn gcm_vectors() {
    use protect::cipher::{GcmKey, PacketAead, TruncatedAead};
    let Some(folder) = testdata() else { return };
    let file = json(&folder, "crypto/esp-aes-gcm-part1.json");
    let mut tested = 0;
    for vector in file["vectors"].as_array().unwrap() {
        let text = |field: &str| hex(vector[field].as_str().unwrap_or_default());
        let tag_length: usize = match vector["alg"].as_str().unwrap() {
            "ENCR_AES_GCM_ICV16" => 16,
            "ENCR_AES_GCM_ICV12" => 12,
            "ENCR_AES_GCM_ICV8" => 8,
            other => panic!("an algorithm that this test does not know: {other}"),
        };
        let secret = text("key");
        let (key, salt) = secret.split_at(secret.len() - 4);
        let nonce: [u8; 12] = [salt, &text("iv")].concat().try_into().unwrap();
        let aad = text("adata");
        let cipher = text("cipher");
        let (body, tag) = cipher.split_at(cipher.len() - tag_length);
        let gcm = GcmKey::new(key).unwrap();
        let mut data = text("plain");
        let sealed = gcm.encrypt(nonce, &aad, &mut data).unwrap();
        assert_eq!((&data[..], &sealed[..tag_length]), (body, tag));
        let truncated = TruncatedAead::new(key).unwrap();
        truncated.decrypt(nonce, &aad, &mut data, tag).unwrap();
        assert_eq!(data, text("plain"));
        let mut wrong = tag.to_vec();
        wrong[0] ^= 1;
        let mut data = body.to_vec();
        assert!(truncated.decrypt(nonce, &aad, &mut data, &wrong).is_err());
        assert!(
            data.iter().all(|byte| *byte == 0),
            "nothing is left to read"
        );
        tested += 1;
    }
    assert!(tested >= 8, "{tested}");
}

/// RFC 2202, RFC 4231 and RFC 4868.
#[test]
fn hmac_vectors() {
    let Some(folder) = testdata() else { return };
    let mut tested = 0;
    for file in [
        "crypto/hmac-md5-sha1-rfc2202.json",
        "crypto/hmac-sha2-rfc4868-part1.json",
    ] {
        for vector in json(&folder, file)["vectors"].as_array().unwrap() {
            let text = |field: &str| hex(vector[field].as_str().unwrap_or_default());
            let (key, data) = (text("key"), [text("data"), text("seed")].concat());
            let expected = [text("mac"), text("out")].concat();
            let name = vector["alg"].as_str().unwrap();
            let tag = if name.contains("MD5") {
                HmacMd5::new(&key).tag(&data, &[]).to_vec()
            } else if name.contains("SHA1") {
                HmacSha1::new(&key).tag(&data, &[]).to_vec()
            } else if name.contains("256") && !name.contains("512_256") {
                HmacSha256::new(&key).tag(&data, &[]).to_vec()
            } else if name.contains("384") {
                HmacSha384::new(&key).tag(&data, &[]).to_vec()
            } else {
                HmacSha512::new(&key).tag(&data, &[]).to_vec()
            };
            assert_eq!(tag[..expected.len()], expected, "{}", vector["name"]);
            tested += 1;
        }
    }
    assert!(tested >= 30, "{tested}");
}

/// Our own packets with the numbers of a vector: an outbound association is restored to number 5.
#[test]
fn sealed_packet_has_the_bytes_of_its_fields() {
    let key: Vec<u8> = (0x80..=0x9f).chain(0xa0..=0xa3).collect();
    let suite = EspSuite::new(EspEncryption::ChaCha20Poly1305, EspIntegrity::None);
    let spec = SaSpec::new(0x0102_0304, suite, EspKeys::new(&key, &[]))
        .tunnel([203, 0, 113, 153].into(), [203, 0, 113, 5].into());
    let state = OutboundState {
        spi: 0x0102_0304,
        next_sequence: 5,
        usage: SaUsage::default(),
    };
    let mut entropy = Entropy::from_number(1);
    let mut sa = OutboundSa::resume(spec, &state, 0, &mut entropy, Time::ZERO).unwrap();
    let packet = hex(
        "45000054a6f200004001e778c6336405c000020508005b7a3a080000553bec10
        0007362708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f20212223
        2425262728292a2b2c2d2e2f3031323334353637",
    );
    let mut buffer = vec![0; MAX_HEADROOM + packet.len() + MAX_TAILROOM];
    buffer[MAX_HEADROOM..][..packet.len()].copy_from_slice(&packet);
    let mut room = PacketRoom::new(&mut buffer, MAX_HEADROOM, packet.len());
    sa.seal_packet(&mut room, Time::ZERO).unwrap();
    let wire = room.packet().to_vec();
    // Version to addresses: 140 bytes, identification of a packet that may be fragmented, TTL 64, ESP.
    assert_eq!(to_hex(&wire[..4]), "4500008c");
    assert_eq!(to_hex(&wire[8..10]), "4032");
    assert_eq!(to_hex(&wire[12..20]), "cb007199cb007105");
    assert!(
        wire::ip::Ipv4View::parse(&wire)
            .unwrap()
            .has_valid_checksum()
    );
    assert_eq!(to_hex(&wire[20..36]), "01020304000000050000000000000005");
    let transform = transform(
        EspEncryption::ChaCha20Poly1305,
        EspIntegrity::None,
        (&key, &[]),
    );
    assert_eq!(
        open(&transform, &wire[20..], None),
        Ok((packet, protocol::IPIP))
    );
}
