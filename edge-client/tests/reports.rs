//! Tests of reports: a device that has something to say reports once on each connection, after its key is proved, and again after 64
//! rounds; a private device never does.
#![cfg(all(feature = "privacy", feature = "reports"))]

use crate::common::priced_task::*;
use crate::common::problem::*;
use crate::common::server::*;
use crate::common::*;
use crate::malicious_server::Pair;
use fedspan_client::Linear;
use fedspan_client::session::{About, Config, Event, Firmware, ResetReason};
use fedspan_protocol::message::{
    Ack, AckOutcome, REPORT_COUNTERS, ReportCounters, ToDevice, ToServer, Welcome,
};
use fedspan_protocol::secure::Key;
use fedspan_protocol::tensor::Encoding;

const ABOUT: About =
    About { firmware: Firmware { version: [1, 2, 3], build: 0xabcd }, reset: ResetReason::Brownout };

fn config() -> Config {
    Config { about: Some(ABOUT), ..session_config(512) }
}

/// Returns the counter of this name.
fn counter(body: &[u8], name: &str) -> u32 {
    ReportCounters::read(body).unwrap().0[REPORT_COUNTERS.iter().position(|other| *other == name).unwrap()]
}

#[test]
fn device_reports_on_each_connection_and_after_64_rounds() {
    let problem = create_problem(20, 2, 1);
    for key in [None, Some(Key::new(3, [0x42; 32]))] {
        let mut pair = Pair::unconnected(&problem, config(), key.clone(), Flash::default());
        let mut round = 0;
        for connection in 0..3u32 {
            pair.handle_event(Event::LinkDown);
            assert!(matches!(pair.handle_event(Event::LinkUp)[..], [(ToServer::Hello(_), _)]));
            let welcome = ToDevice::Welcome(Welcome { campaign: 7, idle_milliseconds: 60_000 });
            let sent = pair.deliver(&welcome, &[]);
            // With a key the proof comes first, so that the report is sealed and the server knows the device.
            let (report, body) = match (&sent[..], &key) {
                ([(ToServer::Report(report), body)], None) => (report, body),
                ([(ToServer::Alive, _), (ToServer::Report(report), body)], Some(_)) => (report, body),
                _ => panic!("{sent:?}"),
            };
            assert_eq!((report.firmware, report.reset, report.uptime), (ABOUT.firmware, ABOUT.reset, 1));
            assert_eq!(ReportCounters::read(body).unwrap().0.len(), REPORT_COUNTERS.len());
            assert_eq!(counter(body, "counted"), round);
            for number in 1..=70 {
                round += 1;
                let opening = problem.server(round, gradient_task(), Encoding::F32, 512).opening_messages();
                let sent = pair.deliver(&opening[0].0, &opening[0].1);
                assert!(matches!(sent[..], [(ToServer::Update(_), _)]), "{sent:?}");
                let id = fedspan_protocol::message::RoundId { round, stage: 0 };
                let sent = pair.deliver(&ToDevice::Ack(Ack { id, outcome: AckOutcome::Counted }), &[]);
                match &sent[..] {
                    [] => assert_ne!(number, 64),
                    [(ToServer::Report(_), body)] => {
                        assert_eq!((number, counter(body, "counted")), (64, round));
                    }
                    _ => panic!("{connection}: {sent:?}"),
                }
            }
        }
    }
}

#[test]
fn devices_without_facts_or_with_noise_report_nothing() {
    let problem = create_problem(20, 2, 1);
    let mut pair = Pair::with_config(&problem, session_config(512), None, Flash::default());
    assert!(pair.handle_event(Event::Tick).is_empty());
    let noise = PricedTask::new(Linear::new(Heap::new(20, 2, 1)), Some(1000), 5_000);
    let mut bench = Bench::with_task(config(), noise, problem.samples.clone(), Flash::default());
    assert!(bench.connect(7, 60_000).is_empty());
    let mut open = Bench::with_task(
        config(),
        Linear::new(Heap::new(20, 2, 1)),
        problem.samples.clone(),
        Flash::default(),
    );
    assert!(matches!(open.connect(7, 60_000)[..], [(ToServer::Report(_), _)]));
}
