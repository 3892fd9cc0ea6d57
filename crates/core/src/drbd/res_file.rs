//! The `.res` file of DRBD resources, as drbdadm 9 reads it.

use std::fmt::Write;

use super::model::{Host, ResourceConfig};

/// Prints resources as one file. It brings its `global` section along, so that it can also be used
/// alone (`drbdadm -c FILE`); `usage-count no` keeps drbdadm from asking the network.
///
/// drbdadm takes an index inside the quotes of a meta device for a part of its name, so none is
/// written: the metadata is flexible, one device for each volume. Fencing is on so that a side that
/// has lost its peer does not call its data UpToDate; nothing promotes but an order to do so.
pub fn render(resources: &[ResourceConfig]) -> String {
    let mut file = String::from("global { usage-count no; }\n");
    for resource in resources {
        // Writing into a String cannot fail.
        let _ = section(&mut file, resource);
    }
    file
}

fn section(file: &mut String, r: &ResourceConfig) -> std::fmt::Result {
    writeln!(file, "\nresource {} {{", quoted(&r.name))?;
    writeln!(
        file,
        "    options {{ auto-promote no; on-no-data-accessible suspend-io; }}"
    )?;
    writeln!(
        file,
        "    disk {{ on-io-error detach; c-min-rate {}k;{} }}",
        r.resync_rate.min_kibps,
        most(r.resync_rate.max_kibps)
    )?;
    writeln!(file, "    net {{")?;
    writeln!(file, "        protocol {};", r.protocol)?;
    writeln!(file, "        cram-hmac-alg sha256;")?;
    writeln!(
        file,
        "        shared-secret {};",
        quoted(r.shared_secret.reveal())
    )?;
    writeln!(file, "        fencing resource-only;")?;
    writeln!(file, "        after-sb-0pri disconnect;")?;
    writeln!(file, "        after-sb-1pri disconnect;")?;
    writeln!(file, "        after-sb-2pri disconnect;")?;
    writeln!(file, "        rr-conflict retry-connect;")?;
    writeln!(file, "        ping-int {};", r.net.ping_interval_seconds)?;
    writeln!(file, "        ping-timeout {};", r.net.ping_timeout_tenths)?;
    writeln!(
        file,
        "        connect-int {};",
        r.net.connect_interval_seconds
    )?;
    writeln!(file, "        timeout {};", r.net.timeout_tenths)?;
    writeln!(
        file,
        "        verify-alg {};",
        quoted(&r.net.verify_algorithm)
    )?;
    writeln!(
        file,
        "        csums-alg {};",
        quoted(&r.net.csums_algorithm)
    )?;
    writeln!(file, "    }}")?;
    // The parser wants devices in the peer's section too; each node uses those of its own alone.
    for host in ordered(r) {
        writeln!(file, "    on {} {{", quoted(&host.node))?;
        writeln!(file, "        node-id {};", host.node_id)?;
        writeln!(
            file,
            "        address {} {}:{};",
            family(&host.address),
            literal(&host.address),
            host.port
        )?;
        writeln!(
            file,
            "        volume 0 {{ device minor {}; disk {}; meta-disk {}; }}",
            r.minor,
            quoted(&r.disk),
            quoted(&r.meta_disk)
        )?;
        writeln!(file, "    }}")?;
    }
    let [first, second] = ordered(r);
    writeln!(
        file,
        "    connection-mesh {{ hosts {} {}; }}",
        quoted(&first.node),
        quoted(&second.node)
    )?;
    writeln!(file, "}}")
}

/// By node id, so that both nodes write the same order.
fn ordered(r: &ResourceConfig) -> [&Host; 2] {
    if r.local.node_id <= r.peer.node_id {
        [&r.local, &r.peer]
    } else {
        [&r.peer, &r.local]
    }
}

/// 0 is unlimited: DRBD's own default of 100 MiB/s would be a limit.
fn most(kibps: i64) -> String {
    // The greatest that drbdadm takes: 4 GiB/s.
    const GREATEST: i64 = 4_194_304;
    format!(
        " c-max-rate {}k;",
        if kibps == 0 {
            GREATEST
        } else {
            kibps.min(GREATEST)
        }
    )
}

fn family(address: &str) -> &'static str {
    if address.contains(':') {
        "ipv6"
    } else {
        "ipv4"
    }
}

fn literal(address: &str) -> String {
    if address.contains(':') {
        format!("[{address}]")
    } else {
        address.into()
    }
}

/// A keyword or a `:` unquoted would fail; inside quotes only backslash and quote are special.
fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::drbd::model::Secret;
    use farshore_api::drbd::Protocol;

    fn config() -> ResourceConfig {
        let host = |cluster: &str, node: &str, node_id, address: &str| Host {
            cluster: cluster.into(),
            node: node.into(),
            node_id,
            address: address.into(),
            port: 7003,
        };
        ResourceConfig {
            name: "drbd-shop-db01-1a2b3c4d".into(),
            minor: 1003,
            protocol: Protocol::C,
            shared_secret: Secret::from("a \"quoted\" \\ one"),
            local: host("west", "west-1", 1, "fd00::2"),
            peer: host("east", "east-1", 0, "fd00::1"),
            disk: "/dev/disk/by-id/data".into(),
            meta_disk: "/dev/disk/by-id/meta".into(),
            net: Default::default(),
            resync_rate: Default::default(),
        }
    }

    #[test]
    fn a_file_is_printed_as_drbdadm_reads_it() {
        let mut second = config();
        second.name.push_str("-v1");
        second.minor = 1004;
        second.disk.push('1');
        second.meta_disk.push('1');
        for (host, address) in [
            (&mut second.local, "10.2.0.1"),
            (&mut second.peer, "10.1.0.1"),
        ] {
            host.address = address.into();
            host.port = 7004;
        }
        insta::assert_snapshot!(render(&[config(), second]));
    }

    #[test]
    fn debug_does_not_show_the_secret() {
        let text = format!("{:?}", config());
        assert!(
            text.contains("shared_secret: ***") && !text.contains("quoted"),
            "{text}"
        );
    }
}
