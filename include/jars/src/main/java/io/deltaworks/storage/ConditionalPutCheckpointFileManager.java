package io.deltaworks.storage;

import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.nio.file.FileAlreadyExistsException;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.PathFilter;
import org.apache.hadoop.fs.UnsupportedFileSystemException;
import org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager;
import org.apache.spark.sql.execution.streaming.checkpointing.FileContextBasedCheckpointFileManager;
import org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager;

/**
 * Spark's checkpoint files on S3, where "create, do not replace" is a conditional put.
 *
 * <p>Of two drivers on one checkpoint exactly one creates {@code offsets/N}; the other is told that the file exists,
 * which Spark turns into its error about several queries on one checkpoint. Spark's own managers check and then
 * rename, and on S3 the second driver replaces the first one's file.
 *
 * <p>Only creating differs: everything else, and every other file system, goes to Spark's default manager. Set
 * {@code spark.sql.streaming.checkpointFileManagerClass} to this class.
 */
public final class ConditionalPutCheckpointFileManager implements CheckpointFileManager {

  private final CheckpointFileManager spark;
  private final FileSystem s3a; // null on any other file system

  public ConditionalPutCheckpointFileManager(Path path, Configuration hadoopConf) throws IOException {
    FileSystem fs = path.getFileSystem(hadoopConf);
    boolean conditional = "s3a".equals(fs.getScheme());
    this.s3a = conditional ? fs : null;
    this.spark = conditional ? new FileSystemBasedCheckpointFileManager(path, hadoopConf)
        : defaultManager(path, hadoopConf);
  }

  /** As Spark chooses: FileContext, whose rename is atomic where there is one, else FileSystem. */
  private static CheckpointFileManager defaultManager(Path path, Configuration hadoopConf) throws IOException {
    try {
      return new FileContextBasedCheckpointFileManager(path, hadoopConf);
    } catch (Exception e) { // Scala does not declare what its constructor throws.
      if (e instanceof UnsupportedFileSystemException) {
        return new FileSystemBasedCheckpointFileManager(path, hadoopConf);
      }
      throw e;
    }
  }

  @Override
  public CheckpointFileManager.CancellableFSDataOutputStream createAtomic(Path path, boolean overwriteIfPossible) {
    if (s3a == null) {
      return spark.createAtomic(path, overwriteIfPossible);
    }
    return overwriteIfPossible ? new Replacing(openToReplace(path)) : new Creating(path);
  }

  private FSDataOutputStream openToReplace(Path path) {
    try {
      return s3a.create(path, true);
    } catch (IOException e) {
      throw sneak(e);
    }
  }

  /** Creates the file at close, or not at all. Small files only: Spark's metadata of one batch. */
  private final class Creating extends CheckpointFileManager.CancellableFSDataOutputStream {
    private final Path path;
    private boolean ended;

    Creating(Path path) {
      super(new ByteArrayOutputStream());
      this.path = path;
    }

    @Override
    public synchronized void close() throws IOException {
      if (ended) {
        return;
      }
      ended = true;
      try {
        PutIfAbsent.put(s3a, path, ((ByteArrayOutputStream) underlyingStream()).toByteArray());
      } catch (FileAlreadyExistsException e) {
        // Hadoop's class of that name is the one Spark expects.
        throw (IOException) new org.apache.hadoop.fs.FileAlreadyExistsException(path.toString()).initCause(e);
      }
    }

    @Override
    public synchronized void cancel() {
      ended = true;
    }
  }

  /** Puts the file at close, whatever was there; state store files, which a repeated batch writes again. */
  private static final class Replacing extends CheckpointFileManager.CancellableFSDataOutputStream {
    private final FSDataOutputStream object;
    private boolean ended;

    Replacing(FSDataOutputStream object) {
      super(object);
      this.object = object;
    }

    @Override
    public synchronized void close() throws IOException {
      if (!ended) {
        ended = true;
        object.close();
      }
    }

    @Override
    public synchronized void cancel() {
      if (!ended) {
        ended = true;
        object.abort(); // close() would put the torn object.
      }
    }
  }

  @Override
  public FSDataInputStream open(Path path) {
    return spark.open(path);
  }

  @Override
  public FileStatus[] list(Path path, PathFilter filter) {
    return spark.list(path, filter);
  }

  @Override
  public void mkdirs(Path path) {
    spark.mkdirs(path);
  }

  @Override
  public boolean exists(Path path) {
    return spark.exists(path);
  }

  @Override
  public void delete(Path path) {
    spark.delete(path);
  }

  @Override
  public boolean isLocal() {
    return spark.isLocal();
  }

  @Override
  public Path createCheckpointDirectory() {
    return spark.createCheckpointDirectory();
  }

  @Override
  public void close() {
    spark.close();
  }

  /** Scala declares no exceptions, and its callers catch IOException by type: it must not be wrapped. */
  @SuppressWarnings("unchecked")
  private static <E extends Throwable> RuntimeException sneak(Throwable e) throws E {
    throw (E) e;
  }
}
