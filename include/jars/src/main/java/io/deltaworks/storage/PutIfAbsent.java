package io.deltaworks.storage;

import java.io.FileNotFoundException;
import java.io.IOException;
import java.io.InputStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.FileAlreadyExistsException;
import java.util.Arrays;
import java.util.UUID;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FSDataOutputStreamBuilder;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Options.CreateFileOptionKeys;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.s3a.AWSServiceIOException;

/**
 * Puts one object on S3 only if no object has its name, and tells for certain who put it.
 *
 * <p>The condition ({@code If-None-Match: *}) is checked by the server, so writers in any number of processes and
 * machines exclude each other without a lock table. What makes it more than one request is a lost reply: the server
 * has stored the object, the answer did not arrive, the SDK repeats the request and is told that the object exists.
 * Every failure is therefore judged by reading back what is there:
 *
 * <ul>
 *   <li>it carries the identity of this call, or, on a server that keeps no user metadata, the same bytes: our own
 *       put landed, which is success;
 *   <li>it is something else: {@link FileAlreadyExistsException};
 *   <li>there is nothing: the original error, for the put has not happened so far.
 * </ul>
 */
final class PutIfAbsent {

  /** Object metadata naming the one call that put the object: byte-identical puts of two writers stay two puts. */
  static final String WRITE_ID = "deltaworks-write-id";

  private static final String WRITE_ID_OPTION = "fs.s3a.create.header." + WRITE_ID;
  private static final String WRITE_ID_ATTRIBUTE = "header." + WRITE_ID;
  private static final int STATUS_CONFLICT = 409;
  private static final int ATTEMPTS = 5;
  private static final long PAUSE_MILLIS = 50;

  private enum Found { NOTHING, OURS, ANOTHER }

  private PutIfAbsent() {}

  /**
   * Creates {@code path} with {@code content}, atomically.
   *
   * @throws FileAlreadyExistsException somebody else's object has the name
   * @throws IOException the object is not there and could not be put, or its state could not be read
   */
  static void put(FileSystem fs, Path path, byte[] content) throws IOException {
    String writeId = UUID.randomUUID().toString();
    for (int attempt = 1; ; attempt++) {
      IOException failure;
      try {
        putOnce(fs, path, content, writeId);
        return;
      } catch (IOException e) {
        failure = e;
      }
      switch (readBack(fs, path, content, writeId, failure)) {
        case OURS:
          return;
        case ANOTHER:
          FileAlreadyExistsException exists = new FileAlreadyExistsException(path.toString());
          exists.initCause(failure);
          throw exists;
        default:
          if (attempt == ATTEMPTS || !isConflict(failure)) {
            throw failure;
          }
          pause(attempt * PAUSE_MILLIS, failure);
      }
    }
  }

  private static void putOnce(FileSystem fs, Path path, byte[] content, String writeId) throws IOException {
    FSDataOutputStreamBuilder<?, ?> request = fs.createFile(path);
    request.overwrite(true); // No probe before the put: the condition replaces it, and a probe is a race.
    request.must(CreateFileOptionKeys.FS_OPTION_CREATE_CONDITIONAL_OVERWRITE, true);
    request.must(WRITE_ID_OPTION, writeId);
    FSDataOutputStream out = request.build();
    try {
      out.write(content);
    } catch (IOException | RuntimeException | Error e) {
      abort(out, e); // close() would put what was written so far.
      throw e;
    }
    try {
      out.close();
    } catch (IOException | RuntimeException | Error e) {
      abort(out, e);
      throw e;
    }
  }

  private static Found readBack(
      FileSystem fs, Path path, byte[] content, String writeId, IOException failure) throws IOException {
    try {
      byte[] found = fs.getXAttrs(path).get(WRITE_ID_ATTRIBUTE);
      if (found != null && found.length > 0) {
        return new String(found, StandardCharsets.UTF_8).equals(writeId) ? Found.OURS : Found.ANOTHER;
      }
      // Written by another kind of writer, or metadata is not kept. A Delta commit names its transaction (txnId in
      // commitInfo, a random UUID), so two writers' commits are never the same bytes.
      return Arrays.equals(read(fs, path, content.length), content) ? Found.OURS : Found.ANOTHER;
    } catch (FileNotFoundException absent) {
      return Found.NOTHING;
    } catch (IOException unreadable) {
      failure.addSuppressed(unreadable);
      throw failure; // Whether the put happened is not known, and neither success nor conflict may be claimed.
    }
  }

  /** At most one byte more than {@code length}: enough to tell a longer object apart without reading all of it. */
  private static byte[] read(FileSystem fs, Path path, int length) throws IOException {
    try (InputStream in = fs.open(path)) {
      return in.readNBytes(length == Integer.MAX_VALUE ? length : length + 1);
    }
  }

  /** Whether S3 asks to come again because another request on the same name, a delete perhaps, was running. */
  private static boolean isConflict(IOException failure) {
    return failure instanceof AWSServiceIOException
        && ((AWSServiceIOException) failure).statusCode() == STATUS_CONFLICT;
  }

  private static void pause(long millis, IOException failure) throws IOException {
    try {
      Thread.sleep(millis);
    } catch (InterruptedException e) {
      Thread.currentThread().interrupt();
      throw failure;
    }
  }

  private static void abort(FSDataOutputStream out, Throwable failure) {
    try {
      out.abort();
    } catch (RuntimeException e) {
      failure.addSuppressed(e);
    }
  }
}
