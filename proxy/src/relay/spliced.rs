//! The body of a leg: stretches of the client's bytes with our own between them, not copied together.
//!
//! A prompt may have megabytes, and each leg gets it once more. The kernel takes a list of stretches as well as one.

use std::convert::Infallible;
use std::io::IoSlice;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Buf, Bytes};
use http_body::{Body, Frame, SizeHint};
use smallvec::SmallVec;

/// Shorter stretches are copied: one more entry in a list costs as much.
const COPIED_UP_TO: usize = 256;

/// Bytes in several stretches.
#[derive(Clone, Debug, Default)]
pub struct Spliced {
    /// None is empty.
    stretches: SmallVec<[Bytes; 3]>,
    /// How many were taken as a whole.
    taken: usize,
    length: usize,
}

impl Spliced {
    fn push(&mut self, stretch: Bytes) {
        if !stretch.is_empty() {
            self.length += stretch.len();
            self.stretches.push(stretch);
        }
    }
}

impl From<Bytes> for Spliced {
    fn from(bytes: Bytes) -> Self {
        let mut spliced = Self::default();
        spliced.push(bytes);
        spliced
    }
}

impl Buf for Spliced {
    fn remaining(&self) -> usize {
        self.length
    }

    fn chunk(&self) -> &[u8] {
        self.stretches.get(self.taken).map_or(&[], |stretch| stretch)
    }

    fn chunks_vectored<'s>(&'s self, slices: &mut [IoSlice<'s>]) -> usize {
        let left = self.stretches.get(self.taken..).unwrap_or_default();
        slices.iter_mut().zip(left).map(|(slice, stretch)| *slice = IoSlice::new(stretch)).count()
    }

    fn advance(&mut self, count: usize) {
        self.length -= count;
        let mut left = count;
        while left > 0 {
            let Some(stretch) = self.stretches.get_mut(self.taken) else { return };
            let step = left.min(stretch.len());
            stretch.advance(step);
            left -= step;
            if stretch.is_empty() {
                self.taken += 1;
            }
        }
    }
}

impl Body for Spliced {
    type Data = Self;
    type Error = Infallible;

    fn poll_frame(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Self>, Infallible>>> {
        let whole = std::mem::take(self.get_mut());
        Poll::Ready((whole.length > 0).then(|| Ok(Frame::data(whole))))
    }

    fn is_end_stream(&self) -> bool {
        self.length == 0
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.length as u64)
    }
}

/// Puts one together.
pub(super) struct Splicer<'w> {
    whole: &'w Bytes,
    done: Spliced,
    /// What is kept next; stretches that lie side by side become one.
    kept: std::ops::Range<usize>,
    /// What was copied and written since the last stretch.
    text: Vec<u8>,
    /// How many bytes will be written.
    room: usize,
}

impl<'w> Splicer<'w> {
    /// One that keeps stretches of `whole`, and gets about `room` bytes written between them.
    pub(super) fn new(whole: &'w Bytes, room: usize) -> Self {
        Self { whole, done: Spliced::default(), kept: 0..0, text: Vec::new(), room }
    }

    /// Appends a stretch of the bytes that are kept.
    pub(super) fn keep(&mut self, range: std::ops::Range<usize>) {
        if range.start == self.kept.end {
            self.kept.end = range.end;
        } else {
            self.end_kept();
            self.kept = range;
        }
    }

    /// Appends other bytes.
    pub(super) fn write(&mut self, bytes: &[u8]) {
        self.end_kept();
        self.copy(bytes);
    }

    fn copy(&mut self, bytes: &[u8]) {
        if self.text.capacity() == 0 {
            self.text.reserve_exact(self.room + COPIED_UP_TO);
        }
        self.text.extend_from_slice(bytes);
    }

    fn end_kept(&mut self) {
        let kept = std::mem::replace(&mut self.kept, 0..0);
        if kept.len() <= COPIED_UP_TO {
            if !kept.is_empty() {
                let whole = self.whole;
                self.copy(&whole[kept]);
            }
            return;
        }
        self.end_text();
        self.done.push(self.whole.slice(kept));
    }

    fn end_text(&mut self) {
        if !self.text.is_empty() {
            self.done.push(std::mem::take(&mut self.text).into());
        }
    }

    /// What was put together.
    pub(super) fn finish(mut self) -> Spliced {
        self.end_kept();
        self.end_text();
        self.done
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spliced() -> (Spliced, Vec<u8>) {
        let whole: Bytes = (0..2_000).map(|index| b'a' + (index % 26) as u8).collect::<Vec<u8>>().into();
        let mut splicer = Splicer::new(&whole, 0);
        let mut expected = Vec::new();
        for (range, text) in [(0..700, "one"), (700..705, "two"), (800..1_900, ""), (1_900..1_900, ""), (5..6, "!")] {
            splicer.keep(range.clone());
            splicer.write(text.as_bytes());
            expected.extend_from_slice(&whole[range]);
            expected.extend_from_slice(text.as_bytes());
        }
        (splicer.finish(), expected)
    }

    #[test]
    fn what_was_put_together_comes_out_however_it_is_taken() {
        let (whole, expected) = spliced();
        assert_eq!(whole.stretches.len(), 4, "short stretches lie with the text between the long ones");
        for step in [1, 7, 256, 699, 700, 701, 1_100, expected.len()] {
            let mut left = whole.clone();
            let mut taken = Vec::new();
            while left.has_remaining() {
                let mut slices = [IoSlice::new(&[]); 2];
                let filled = left.chunks_vectored(&mut slices);
                assert_eq!(&*slices[0], left.chunk());
                let all: Vec<u8> = slices[..filled].iter().flat_map(|slice| slice.to_vec()).collect();
                let step = step.min(all.len());
                taken.extend_from_slice(&all[..step]);
                left.advance(step);
                assert_eq!(left.remaining(), expected.len() - taken.len());
            }
            assert_eq!(taken, expected, "{step}");
            assert_eq!((left.chunk(), left.chunks_vectored(&mut [IoSlice::new(&[])])), (&[][..], 0));
        }
    }

    #[test]
    fn as_a_body_it_is_one_piece_of_known_length() {
        let (mut whole, expected) = spliced();
        assert_eq!(whole.size_hint().exact(), Some(expected.len() as u64));
        let mut context = Context::from_waker(std::task::Waker::noop());
        let Poll::Ready(Some(Ok(frame))) = Pin::new(&mut whole).poll_frame(&mut context) else { panic!("no piece") };
        let mut data = frame.into_data().unwrap();
        assert_eq!(data.copy_to_bytes(data.remaining()), expected);
        assert!(whole.is_end_stream());
        assert!(matches!(Pin::new(&mut whole).poll_frame(&mut context), Poll::Ready(None)));
        assert!(Spliced::from(Bytes::new()).is_end_stream());
    }
}
