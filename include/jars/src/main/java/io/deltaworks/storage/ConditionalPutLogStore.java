package io.deltaworks.storage;

import io.delta.storage.HadoopFileSystemLogStore;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.util.Iterator;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;

/**
 * Delta's log store for {@code s3a}: a commit is a conditional put, so any number of writers is safe on plain S3.
 *
 * <p>Delta's default for S3 takes a lock inside one JVM, and a second driver replaces commits of the first. Writers
 * of other kinds are safe beside this one if they put their commits conditionally too, as delta-rs does.
 *
 * <p>Set {@code spark.delta.logStore.s3a.impl} to this class.
 */
public final class ConditionalPutLogStore extends HadoopFileSystemLogStore {

  public ConditionalPutLogStore(Configuration hadoopConf) {
    super(hadoopConf);
  }

  @Override
  public void write(Path path, Iterator<String> actions, Boolean overwrite, Configuration hadoopConf)
      throws IOException {
    FileSystem fs = path.getFileSystem(hadoopConf);
    byte[] content = linesOf(actions);
    if (overwrite) {
      replace(fs, path, content);
    } else {
      PutIfAbsent.put(fs, path, content);
    }
  }

  /** An object appears with its whole content or not at all. */
  @Override
  public Boolean isPartialWriteVisible(Path path, Configuration hadoopConf) {
    return false;
  }

  /** A commit as it stands in the log; in memory, where Delta holds its actions anyway. */
  static byte[] linesOf(Iterator<String> actions) throws IOException {
    ByteArrayOutputStream content = new ByteArrayOutputStream();
    while (actions.hasNext()) {
      content.write(actions.next().getBytes(StandardCharsets.UTF_8));
      content.write('\n');
    }
    return content.toByteArray();
  }

  private static void replace(FileSystem fs, Path path, byte[] content) throws IOException {
    FSDataOutputStream out = fs.create(path, true);
    try {
      out.write(content);
    } catch (IOException | RuntimeException | Error e) {
      out.abort(); // close() would put a torn object.
      throw e;
    }
    out.close();
  }
}
