//! Expected answers, ordered by the times at which they arrive. The work grows with the number of devices that are asked, not with the
//! number that exists.

use super::arrivals::PendingAnswer;

/// Expected answers of devices.
#[derive(Clone, Debug, Default)]
pub struct ExpectedAnswers {
    /// Answer that is expected from each device.
    pending: Vec<Option<PendingAnswer>>,
    /// Number of answers in `pending`.
    count: usize,
    /// Answers in the reverse order of their arrival. An answer that is not the pending one of its device was removed or replaced.
    queue: Vec<(usize, PendingAnswer)>,
    /// Whether answers were added to the queue behind their place.
    is_unsorted: bool,
    /// Devices with an answer that never arrives, as far as it is still pending.
    silent: Vec<usize>,
}

impl ExpectedAnswers {
    /// Adds the answer of a device, instead of an earlier one.
    pub fn insert(&mut self, index: usize, answer: PendingAnswer) {
        if self.pending.len() <= index {
            self.pending.resize(index + 1, None);
        }
        if let Some(pending) = self.pending.get_mut(index) {
            self.count += usize::from(pending.replace(answer).is_none());
        }
        if answer.at.is_finite() {
            self.queue.push((index, answer));
            self.is_unsorted = true;
        } else {
            self.silent.push(index);
        }
    }

    /// Removes the answer of a device. Returns false if none was expected.
    pub fn remove(&mut self, index: usize) -> bool {
        let is_expected = self.pending.get_mut(index).and_then(Option::take).is_some();
        self.count -= usize::from(is_expected);
        is_expected
    }

    /// Removes all answers.
    pub fn clear(&mut self) {
        let queued = self.queue.drain(..).map(|(index, _)| index);
        for index in queued.chain(self.silent.drain(..)) {
            if let Some(pending) = self.pending.get_mut(index) {
                *pending = None;
            }
        }
        self.count = 0;
    }

    /// Expected answer of a device.
    pub fn get(&self, index: usize) -> Option<&PendingAnswer> {
        self.pending.get(index).and_then(Option::as_ref)
    }

    /// Devices that dropped out and never answer, ascending.
    pub fn silent(&self) -> Vec<usize> {
        let is_silent = |index: &usize| {
            self.get(*index).is_some_and(|answer| answer.dropped_out && answer.at.is_infinite())
        };
        let mut silent: Vec<usize> = self.silent.iter().copied().filter(is_silent).collect();
        silent.sort_unstable();
        silent.dedup();
        silent
    }

    /// Removes and returns the first `count` answers in the order of (time, rank, device), up to the first that `in_time` refuses.
    pub fn take(
        &mut self,
        count: usize,
        in_time: impl Fn(&PendingAnswer) -> bool,
    ) -> Vec<(usize, PendingAnswer)> {
        self.forget_stale();
        if std::mem::take(&mut self.is_unsorted) {
            self.queue
                .sort_by(|(i, a), (j, b)| b.at.total_cmp(&a.at).then(b.rank.cmp(&a.rank)).then(j.cmp(i)));
        }
        let mut taken = Vec::with_capacity(count.min(self.queue.len()));
        while taken.len() < count
            && let Some(next) = self.queue.pop_if(|(index, answer)| {
                let is_pending = self.pending.get(*index).is_some_and(|pending| *pending == Some(*answer));
                !is_pending || in_time(answer)
            })
        {
            let (index, answer) = next;
            let pending = self.pending.get_mut(index);
            if let Some(pending) = pending.filter(|pending| **pending == Some(answer)) {
                *pending = None;
                self.count -= 1;
                taken.push(next);
            }
        }
        taken
    }

    /// Forgets answers that were removed or replaced, once most are.
    fn forget_stale(&mut self) {
        if self.queue.len() + self.silent.len() > 64 + 2 * self.count {
            let pending = &self.pending;
            let is_pending = |(index, answer): &(usize, PendingAnswer)| {
                pending.get(*index).is_some_and(|pending| *pending == Some(*answer))
            };
            self.queue.retain(is_pending);
            self.silent = self.silent();
        }
    }
}

#[cfg(test)]
mod tests {
    use fedspan_protocol::message::RoundId;
    use proptest::prelude::*;

    use super::*;

    /// Operation on the answers.
    #[derive(Clone, Copy, Debug)]
    enum Op {
        /// Index, time, rank; a time of 9 never comes.
        Insert(usize, u8, usize),
        Remove(usize),
        Clear,
        /// Number of answers, exclusive limit of the time.
        Take(usize, u8),
    }

    fn operations() -> impl Strategy<Value = Vec<Op>> {
        let operation = prop_oneof![
            6 => (0..12_usize, 0..10_u8, 0..3_usize).prop_map(|(index, at, rank)| Op::Insert(index, at, rank)),
            2 => (0..12_usize).prop_map(Op::Remove),
            1 => Just(Op::Clear),
            4 => (1..6_usize, 0..10_u8).prop_map(|(count, limit)| Op::Take(count, limit)),
        ];
        proptest::collection::vec(operation, 1..200)
    }

    proptest! {
        /// Compares with a search of all devices.
        #[test]
        fn answers_are_those_of_a_search(operations in operations()) {
            let mut expected = ExpectedAnswers::default();
            let mut model: Vec<Option<PendingAnswer>> = vec![None; 12];
            for (number, operation) in (0..).zip(operations) {
                match operation {
                    Op::Insert(index, at, rank) => {
                        let at = if at == 9 { f64::INFINITY } else { at.into() };
                        let id = RoundId { round: number, stage: 0 };
                        let answer = PendingAnswer { id, at, rank, dropped_out: at.is_infinite() };
                        expected.insert(index, answer);
                        model[index] = Some(answer);
                    }
                    Op::Remove(index) => prop_assert_eq!(expected.remove(index), model[index].take().is_some()),
                    Op::Clear => {
                        expected.clear();
                        model.fill(None);
                    }
                    Op::Take(count, limit) => {
                        let in_time = |answer: &PendingAnswer| answer.at < limit.into();
                        let all = model.iter().enumerate().filter_map(|(index, answer)| Some((index, (*answer)?)));
                        let mut due: Vec<_> = all.filter(|(_, answer)| answer.at.is_finite() && in_time(answer)).collect();
                        due.sort_by(|(_, a), (_, b)| a.at.total_cmp(&b.at).then(a.rank.cmp(&b.rank)));
                        due.truncate(count);
                        due.iter().for_each(|(index, _)| model[*index] = None);
                        prop_assert_eq!(expected.take(count, in_time), due);
                    }
                }
                for (index, answer) in model.iter().enumerate() {
                    prop_assert_eq!(expected.get(index).copied(), *answer);
                }
                let silent: Vec<usize> = (0..12).filter(|index| model[*index].is_some_and(|answer| answer.at.is_infinite())).collect();
                prop_assert_eq!(expected.silent(), silent);
            }
        }
    }
}
