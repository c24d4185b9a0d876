use super::*;

fn allowed(list: &[&str]) -> PrivateTargets {
    PrivateTargets::Only(list.iter().map(|text| text.parse().unwrap()).collect())
}

async fn resolve(
    allowed: PrivateTargets,
    host: &str,
    found: &'static [&'static str],
) -> Result<Vec<String>, String> {
    let resolver =
        Resolver::with(move |_| found.iter().map(|address| address.parse().unwrap()).collect());
    let guarded = Guarded { resolver, allowed };
    match Resolve::resolve(&guarded, host.parse().unwrap()).await {
        Ok(addresses) => Ok(addresses.map(|address| address.ip().to_string()).collect()),
        Err(error) => Err(error.to_string()),
    }
}

#[test]
fn every_network_that_is_not_public_is_known() {
    let rows = [
        (UNSPECIFIED, "0.0.0.0 0.1.2.3 :: ::ffff:0.0.0.0"),
        (LOOPBACK, "127.0.0.1 127.255.0.9 ::1 ::ffff:127.0.0.1 64:ff9b::7f00:1 2002:7f00:1::"),
        (PRIVATE, "10.0.0.1 172.16.0.1 172.31.255.255 192.168.1.1 fc00::1 fd00:ec2::254"),
        (PRIVATE, "::ffff:10.1.2.3 64:ff9b::a00:1 2002:c0a8:101::1"),
        (LINK_LOCAL, "169.254.169.254 169.254.0.1 fe80::1 febf::1 ::ffff:169.254.169.254"),
        (METADATA, "168.63.129.16"),
        (CARRIER, "100.64.0.1 100.127.255.255 100.100.100.200"),
        (DOCUMENTATION, "192.0.2.1 198.51.100.7 203.0.113.9 2001:db8::1 3fff::1"),
        (MULTICAST, "224.0.0.1 239.255.255.250 ff02::1"),
        (RESERVED, "192.0.0.192 198.18.0.1 240.0.0.1 255.255.255.255 192.88.99.1"),
        (RESERVED, "::7f00:1 100::1 2001::1 64:ff9b:1::1 4000::1 fec0::1"),
    ];
    for (expected, addresses) in rows {
        for address in addresses.split(' ') {
            assert_eq!(kind(address.parse().unwrap()), Some(expected), "{address}");
        }
    }
    let public = "1.1.1.1 9.255.255.255 11.0.0.0 100.63.255.255 100.128.0.0 172.15.0.1 172.32.0.1 \
                  192.167.1.1 223.255.255.255 2606:4700::1111 2a00::1 ::ffff:8.8.8.8 \
                  64:ff9b::808:808 2002:808:808::1";
    for address in public.split_whitespace() {
        assert_eq!(kind(address.parse().unwrap()), None, "{address}");
    }
}

#[test]
fn an_address_in_a_url_is_seen_however_it_is_written() {
    let urls = [
        "http://169.254.169.254/latest/meta-data/",
        "http://[fd00:ec2::254]/",
        "http://127.0.0.1:6379/",
        "http://0.0.0.0/",
        "http://[::1]/",
        "http://[::ffff:127.0.0.1]/",
        "http://2130706433/",
        "http://0x7f.1/",
        "http://0177.0.0.1/",
        "http://127.1/",
        "http://127.0.0.1./",
        "http://①②⑦.0.0.1/",
    ];
    for url in urls {
        let parsed = Url::parse(url).unwrap();
        let blocked = PrivateTargets::NONE.check_url(&parsed).expect_err(url).to_string();
        assert!(blocked.starts_with("ssrf_blocked: "), "{blocked}");
        assert!(blocked.contains("`http.allow_private`"), "{blocked}");
        assert_eq!(PrivateTargets::All.check_url(&parsed), Ok(()), "{url}");
    }
    let public = Url::parse("http://93.184.216.34/").unwrap();
    assert_eq!(PrivateTargets::NONE.check_url(&public), Ok(()));
}

#[test]
fn what_is_allowed_is_a_network_or_a_host() {
    let rows = [
        ("127.0.0.1", "x", "127.0.0.1", true),
        ("127.0.0.1", "x", "::ffff:127.0.0.1", true),
        ("127.0.0.1", "x", "127.0.0.2", false),
        ("10.1.0.0/16", "x", "10.1.9.9", true),
        ("10.1.0.0/16", "x", "10.2.0.1", false),
        ("0.0.0.0/0", "x", "10.2.0.1", true),
        ("0.0.0.0/0", "x", "::1", false),
        ("fd00::/8", "x", "fd12::1", true),
        ("Billing.Internal", "billing.internal.", "10.0.0.1", true),
        ("billing.internal", "evil.billing.internal", "10.0.0.1", false),
    ];
    for (target, host, address, expected) in rows {
        let is_allowed = allowed(&[target]).check(host, address.parse().unwrap()).is_ok();
        assert_eq!(is_allowed, expected, "{target} {host} {address}");
    }
    for text in ["", "10.0.0.0/33", "10.0.0.0/x", "a b", "host:80", "http://a", "a/8", "1.2.3"] {
        assert!(text.parse::<PrivateTarget>().is_err(), "{text}");
    }
}

#[tokio::test]
async fn a_name_is_judged_by_what_it_resolves_to() {
    let none = || PrivateTargets::NONE;
    let told = resolve(none(), "evil.example", &["127.0.0.1"]).await.unwrap_err();
    assert_eq!(
        told,
        "ssrf_blocked: `evil.example` resolves to 127.0.0.1, a loopback address; if the step is \
         meant to reach it, put it into the setting `http.allow_private`"
    );
    let mixed = resolve(none(), "mixed.example", &["10.0.0.1", "1.1.1.1", "::1"]).await;
    assert_eq!(mixed, Ok(vec!["1.1.1.1".to_owned()]));
    let inside = resolve(allowed(&["mixed.example"]), "mixed.example", &["10.0.0.1"]).await;
    assert_eq!(inside, Ok(vec!["10.0.0.1".to_owned()]));
    assert!(resolve(none(), "empty.example", &[]).await.is_err());
    // Whatever a resolver says of them, these are this host.
    for host in ["localhost", "localhost.", "LOCALHOST", "a.localhost"] {
        let told = resolve(none(), host, &["1.1.1.1"]).await.unwrap_err();
        assert!(told.starts_with("ssrf_blocked: "), "{told}");
    }
}
