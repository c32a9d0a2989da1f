use super::*;

fn at(text: &str) -> DateTime<Utc> {
    text.parse().unwrap()
}

/// The slots after an instant.
fn slots(schedule: &Schedule, after: &str, count: usize) -> Vec<DateTime<Utc>> {
    let next = |slot: &DateTime<Utc>| schedule.next_after(*slot);
    std::iter::successors(schedule.next_after(at(after)), next).take(count).collect()
}

fn cron(expression: &str, zone: &str) -> Schedule {
    Schedule::cron(expression, zone).unwrap()
}

#[track_caller]
fn assert_slots(schedule: &Schedule, after: &str, expected: &[&str]) {
    let expected: Vec<_> = expected.iter().map(|text| at(text)).collect();
    assert_eq!(slots(schedule, after, expected.len()), expected);
}

#[test]
fn the_next_slot_is_after_the_instant_and_not_at_it() {
    let hourly = cron("0 * * * *", "UTC");
    assert_slots(&hourly, "2026-05-04T09:00:00Z", &["2026-05-04T10:00:00Z"]);
    assert_slots(&hourly, "2026-05-04T08:59:59.999999Z", &["2026-05-04T09:00:00Z"]);
    assert_slots(&hourly, "2026-05-04T09:00:00.000001Z", &["2026-05-04T10:00:00Z"]);
    let seconds = cron("*/30 * * * * *", "UTC");
    assert_slots(
        &seconds,
        "2026-05-04T09:00:00.5Z",
        &["2026-05-04T09:00:30Z", "2026-05-04T09:01:00Z"],
    );
}

#[test]
fn weekdays_are_those_of_the_zone() {
    // In São Paulo it is Monday already, three hours later than in UTC.
    let closing = cron("0 0 17 * * MON-FRI", "America/Sao_Paulo");
    let expected = ["2026-05-08T20:00:00Z", "2026-05-11T20:00:00Z"];
    assert_slots(&closing, "2026-05-07T20:00:00Z", &expected);
}

#[test]
fn a_year_can_be_named_and_ends() {
    let once = cron("0 0 12 1 1 * 2027", "UTC");
    assert_slots(&once, "2026-05-04T09:00:00Z", &["2027-01-01T12:00:00Z"]);
    assert_eq!(once.next_after(at("2027-01-01T12:00:00Z")), None);
    // A job that has had its time must not keep an application from starting.
    assert!(Schedule::cron("0 0 12 1 1 * 1999", "UTC").is_ok());
}

#[test]
fn a_fixed_time_in_a_gap_moves_to_its_end() {
    // On 2026-03-29 the clocks of Berlin skip 02:00 to 03:00.
    let nightly = cron("30 2 * * *", "Europe/Berlin");
    let expected = ["2026-03-28T01:30:00Z", "2026-03-29T01:00:00Z", "2026-03-30T00:30:00Z"];
    assert_slots(&nightly, "2026-03-27T12:00:00Z", &expected);
    // One before the gap is due once.
    let before = cron("0 1 * * *", "Europe/Berlin");
    let expected = ["2026-03-29T00:00:00Z", "2026-03-29T23:00:00Z"];
    assert_slots(&before, "2026-03-28T12:00:00Z", &expected);
}

#[test]
fn a_fixed_time_in_an_overlap_is_due_once_at_the_first() {
    // On 2026-10-25 the clocks of Berlin repeat 02:00 to 03:00.
    let nightly = cron("30 2 * * *", "Europe/Berlin");
    let expected = ["2026-10-24T00:30:00Z", "2026-10-25T00:30:00Z", "2026-10-26T01:30:00Z"];
    assert_slots(&nightly, "2026-10-23T12:00:00Z", &expected);
    // Also if the search begins between the two.
    assert_slots(&nightly, "2026-10-25T01:00:00Z", &["2026-10-26T01:30:00Z"]);
}

#[test]
fn a_frequent_expression_goes_on_through_gap_and_overlap() {
    let half_hourly = cron("*/30 * * * *", "Europe/Berlin");
    let gap = ["2026-03-29T00:30:00Z", "2026-03-29T01:00:00Z", "2026-03-29T01:30:00Z"];
    assert_slots(&half_hourly, "2026-03-29T00:00:00Z", &gap);
    let overlap = [
        "2026-10-25T00:00:00Z",
        "2026-10-25T00:30:00Z",
        "2026-10-25T01:00:00Z",
        "2026-10-25T01:30:00Z",
        "2026-10-25T02:00:00Z",
    ];
    assert_slots(&half_hourly, "2026-10-24T23:30:00Z", &overlap);
}

#[test]
fn midnight_that_does_not_exist_moves_and_no_day_is_lost() {
    // On 2026-03-08 the clocks of Havana skip 00:00 to 01:00.
    let midnight = cron("0 0 * * *", "America/Havana");
    let expected = ["2026-03-07T05:00:00Z", "2026-03-08T05:00:00Z", "2026-03-09T04:00:00Z"];
    assert_slots(&midnight, "2026-03-06T12:00:00Z", &expected);
    // As a day of the month and of the week.
    let of_day = cron("0 0 8 3 *", "America/Havana");
    assert_slots(&of_day, "2026-01-01T00:00:00Z", &["2026-03-08T05:00:00Z"]);
}

#[test]
fn a_zone_may_be_off_by_half_an_hour_and_shift_by_half_an_hour() {
    let noon = cron("0 12 * * *", "Asia/Kolkata");
    assert_slots(&noon, "2026-05-04T00:00:00Z", &["2026-05-04T06:30:00Z"]);
    let kathmandu = cron("0 12 * * *", "Asia/Kathmandu");
    assert_slots(&kathmandu, "2026-05-04T00:00:00Z", &["2026-05-04T06:15:00Z"]);
    // On 2026-10-04 the clocks of Lord Howe Island skip 02:00 to 02:30, on 2026-04-05 they
    // repeat 01:30 to 02:00.
    let in_gap = cron("15 2 * * *", "Australia/Lord_Howe");
    let expected = ["2026-10-02T15:45:00Z", "2026-10-03T15:30:00Z", "2026-10-04T15:15:00Z"];
    assert_slots(&in_gap, "2026-10-02T12:00:00Z", &expected);
    let in_overlap = cron("45 1 * * *", "Australia/Lord_Howe");
    let expected = ["2026-04-03T14:45:00Z", "2026-04-04T14:45:00Z", "2026-04-05T15:15:00Z"];
    assert_slots(&in_overlap, "2026-04-03T12:00:00Z", &expected);
}

#[test]
fn a_zone_may_skip_a_whole_day() {
    // Samoa had no 30 December 2011.
    let noon = cron("0 12 * * *", "Pacific/Apia");
    let expected = ["2011-12-29T22:00:00Z", "2011-12-30T22:00:00Z"];
    assert_slots(&noon, "2011-12-29T12:00:00Z", &expected);
    assert_slots(&noon, "2011-12-30T09:59:59.5Z", &expected[1..]);
}

#[test]
fn times_of_the_day_each_move_by_themselves() {
    let times = ["18:00:00", "02:30:00"].map(|time| time.parse().unwrap());
    let twice = Schedule::daily(times, "Europe/Berlin").unwrap();
    let expected = ["2026-03-29T01:00:00Z", "2026-03-29T16:00:00Z", "2026-03-30T00:30:00Z"];
    assert_slots(&twice, "2026-03-28T20:00:00Z", &expected);
}

#[test]
fn a_rate_has_its_slots_at_the_multiples_of_its_period() {
    let quarter = Schedule::every(Duration::from_secs(900)).unwrap();
    let expected = ["2026-05-04T09:15:00Z", "2026-05-04T09:30:00Z"];
    assert_slots(&quarter, "2026-05-04T09:00:00Z", &expected);
    assert_slots(&quarter, "2026-05-04T09:14:59.999999Z", &["2026-05-04T09:15:00Z"]);
    assert_slots(&quarter, "1969-12-31T23:50:00Z", &["1970-01-01T00:00:00Z"]);
}

#[test]
fn a_delay_counts_from_the_end() {
    let delay = Schedule::delay(Duration::from_millis(1_500)).unwrap();
    assert_slots(&delay, "2026-05-04T09:00:00.2Z", &["2026-05-04T09:00:01.7Z"]);
}

#[test]
fn every_slot_is_later_than_the_one_before_for_years() {
    for zone in ["Europe/Berlin", "America/Havana", "Australia/Lord_Howe", "Africa/Casablanca"] {
        for expression in ["17 * * * *", "30 2 * * *", "0 0 * * *", "*/20 1-3 * * *"] {
            let schedule = cron(expression, zone);
            let slots = slots(&schedule, "2025-01-01T00:00:00Z", 2_000);
            assert_eq!(slots.len(), 2_000);
            assert!(slots.is_sorted_by(|a, b| a < b), "{expression} in {zone}");
            if expression == "30 2 * * *" || expression == "0 0 * * *" {
                let day = |slot: &DateTime<Utc>| {
                    slot.with_timezone(&zone.parse::<Tz>().unwrap()).date_naive()
                };
                let is_each_day =
                    slots.array_windows().all(|[a, b]| day(a).succ_opt() == Some(day(b)));
                assert!(is_each_day, "{expression} in {zone}");
            }
        }
    }
}

#[test]
fn a_schedule_is_read_as_it_was_written() {
    let times = ["06:00:00", "18:30:00"].map(|time| time.parse().unwrap());
    for (schedule, text) in [
        (
            cron("0  17 * *   mon-fri", "America/Sao_Paulo"),
            "cron 0 17 * * mon-fri in America/Sao_Paulo",
        ),
        (
            Schedule::daily(times, "Europe/Berlin").unwrap(),
            "daily 06:00:00,18:30:00 in Europe/Berlin",
        ),
        (Schedule::every(Duration::from_secs(90)).unwrap(), "every 90s"),
        (Schedule::delay(Duration::from_millis(10)).unwrap(), "delay 10ms"),
    ] {
        assert_eq!(schedule.to_string(), text);
        assert_eq!(text.parse(), Ok(schedule));
    }
}

#[test]
fn what_is_no_schedule_is_refused_with_a_sentence() {
    let refused = |result: Result<Schedule, ScheduleError>| result.unwrap_err().to_string();
    assert!(refused(Schedule::cron("61 * * * *", "UTC")).contains("is no cron expression"));
    let hour = refused(Schedule::cron("0 25 * * *", "UTC"));
    assert!(hour.contains("is no cron expression: its hour is `25`: "), "{hour}");
    assert!(!hour.contains(".;"), "{hour}");
    assert!(refused(Schedule::cron("", "UTC")).contains("is no cron expression"));
    assert!(refused(Schedule::cron("0 0 30 2 *", "UTC")).contains("names no instant"));
    assert!(refused(Schedule::cron("0 0 * * *", "Mars/Base")).contains("no time zone"));
    assert!(refused(Schedule::daily([], "UTC")).contains("there is no time"));
    let noon = "12:00:00".parse().unwrap();
    assert!(refused(Schedule::daily([noon, noon], "UTC")).contains("twice"));
    let in_second = "12:00:00.5".parse().unwrap();
    assert!(refused(Schedule::daily([in_second], "UTC")).contains("whole seconds"));
    for duration in [0, 9, u64::MAX].map(Duration::from_millis) {
        assert!(Schedule::every(duration).is_err() && Schedule::delay(duration).is_err());
    }
    assert!(Schedule::every(Duration::from_micros(10_500)).is_err());
    for text in ["", "cron", "cron 0 17 * * *", "often", "every", "every soon", "daily in UTC"] {
        assert!(text.parse::<Schedule>().is_err(), "{text}");
    }
}

#[test]
fn hostile_expressions_are_refused_before_they_cost_anything() {
    let long = format!("{} * * * *", vec!["*/1"; 1_000_000].join(","));
    assert_eq!(Schedule::cron(&long, "UTC"), Err(ScheduleError::TooLong(long.len())));
    assert_eq!(long.parse::<Schedule>(), Err(ScheduleError::TooLong(long.len())));
    assert!(Schedule::cron("* * * * *", &long).is_err());
    // Those that fit are searched up to the year 5000 and not further.
    let dense = vec!["31"; 40].join(",");
    for expression in [
        "0 0 31 2,4,6,9,11 *".to_owned(),
        "* * * 30 2 * *".to_owned(),
        "0 0 0 29 2 +1#5 2027-4999/2".to_owned(),
        "0 0 30W 2 *".to_owned(),
        format!("0 0 {dense} 2,4,6,9,11 *"),
        "0-4294967295 * * * *".to_owned(),
        "0-59/0 * * * *".to_owned(),
        "*/99999999999999999999 * * * *".to_owned(),
        "-- -- -- -- --".to_owned(),
        "######## * * * *".to_owned(),
        "\u{1F570} * * * *".to_owned(),
        "0 0 * * \u{130}".repeat(3),
    ] {
        assert!(Schedule::cron(&expression, "Europe/Berlin").is_err(), "{expression}");
    }
}

#[test]
fn no_text_makes_the_parser_panic_or_hang() {
    let mut state = 0x2545_F491_4F6C_DD1D_u64;
    let mut draw = |most: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        usize::try_from(state % most as u64).unwrap()
    };
    let pieces = [
        "*", "/", "-", ",", "#", "L", "W", "?", "+", "0", "1", "5", "7", "29", "31", "59", "99",
        "MON", "-SUN", "FEB", "@", " ", " ", " ", "2", "é", "\0", "in", "\t", "65535",
    ];
    for _ in 0..3_000 {
        let text: String = (0..draw(24)).map(|_| pieces[draw(pieces.len())]).collect();
        if let Ok(schedule) = Schedule::cron(&text, "America/Havana") {
            assert!(schedule.next_after(DateTime::UNIX_EPOCH).is_some());
            assert_eq!(schedule.to_string().parse(), Ok(schedule));
        }
    }
}
