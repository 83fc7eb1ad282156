//! A stream that writes small slices as one.
//!
//! hyper hands over the head and the body of a message, and the three parts of a chunk, as a list of slices. For the kernel a
//! list costs more than a few hundred bytes that are copied once more: it has to be copied in and checked itself.

use std::cell::RefCell;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// The most that is copied: a head and a short prompt, or several events. From some 10 KiB on the copy costs more than the
/// list.
const MOST_JOINED: usize = 4 * 1024;

thread_local! {
    /// Where slices are put together; one per worker.
    static TOGETHER: RefCell<Vec<u8>> = RefCell::new(Vec::with_capacity(MOST_JOINED));
}

/// The stream.
#[derive(Debug)]
pub struct Joined<S>(pub S);

impl<S: AsyncRead + Unpin> AsyncRead for Joined<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Joined<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let stream = Pin::new(&mut self.0);
        if let [only] = slices {
            return stream.poll_write(context, only);
        }
        if slices.iter().map(|slice| slice.len()).sum::<usize>() > MOST_JOINED {
            return stream.poll_write_vectored(context, slices);
        }
        TOGETHER.with_borrow_mut(|together| {
            together.clear();
            slices.iter().for_each(|slice| together.extend_from_slice(slice));
            stream.poll_write(context, together)
        })
    }

    fn is_write_vectored(&self) -> bool {
        self.0.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use super::*;

    /// What was written, and whether as a list.
    #[derive(Default)]
    struct Writes(Vec<(Vec<u8>, bool)>);

    impl AsyncWrite for Writes {
        fn poll_write(mut self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
            self.0.push((bytes.to_vec(), false));
            Poll::Ready(Ok(bytes.len()))
        }

        fn poll_write_vectored(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
            slices: &[IoSlice<'_>],
        ) -> Poll<io::Result<usize>> {
            let bytes: Vec<u8> = slices.iter().flat_map(|slice| slice.to_vec()).collect();
            let length = bytes.len();
            self.0.push((bytes, true));
            Poll::Ready(Ok(length))
        }

        fn is_write_vectored(&self) -> bool {
            true
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    #[tokio::test]
    async fn small_slices_are_written_as_one_and_long_ones_are_not_copied() {
        let mut stream = Joined(Writes::default());
        assert!(stream.is_write_vectored());
        let long = vec![b'x'; MOST_JOINED];
        for slices in [&[&b"head"[..], b"", b"body"][..], &[b"again", b"!"], &[b"only"], &[b"head", &long]] {
            let slices: Vec<IoSlice<'_>> = slices.iter().map(|slice| IoSlice::new(slice)).collect();
            let length: usize = slices.iter().map(|slice| slice.len()).sum();
            let written = poll_fn(|context| Pin::new(&mut stream).poll_write_vectored(context, &slices)).await;
            assert_eq!(written.unwrap(), length);
        }
        let shown: Vec<(usize, bool)> = stream.0.0.iter().map(|(bytes, as_list)| (bytes.len(), *as_list)).collect();
        assert_eq!(shown, [(8, false), (6, false), (4, false), (4 + MOST_JOINED, true)]);
        assert_eq!(stream.0.0[1].0, b"again!");
    }
}
